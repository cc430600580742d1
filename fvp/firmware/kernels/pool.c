/* avg_pool2d, max_pool2d_with_indices and _adaptive_avg_pool2d over the last two dimensions. */
#include "nn.h"

typedef struct axis {
  int32_t in, out, kernel, stride, padding, dilation;
} axis;

/* Elements `first` to `end` in steps of the dilation; `span` counts padding too, but no further (as torch does). */
typedef struct window {
  int32_t first, end, span;
} window;

static window window_of(const axis *a, int32_t y) {
  int32_t first = y * a->stride - a->padding;
  int32_t end = first + (a->kernel - 1) * a->dilation + 1;
  int32_t limit = a->in + a->padding;
  window w = {first, end, (end < limit ? end : limit) - first};
  if (first < 0) w.first = first + ((-first - 1) / a->dilation + 1) * a->dilation;
  if (w.end > a->in) w.end = a->in;
  return w;
}

/* Item `k` of a list of one or two numbers. */
static int64_t item(al_call *call, uint32_t argument, uint32_t k) {
  uint32_t size = al_list_size(call, argument);
  if (size != 1 && size != 2) {
    al_fail(call, AL_VALUE, (int32_t)argument);
    return 0;
  }
  return al_int_item(call, argument, size == 1 ? 0 : k);
}

/* Checks one dimension and computes its output size; positions fit int32 afterwards. Arguments 1 to 3 are kernel,
 * stride (empty: the kernel) and padding; `dilation` is the number of an argument or 0. */
static al_status set_axis(al_call *call, axis *a, uint32_t d, int32_t in, uint32_t dilation_arg, bool ceil_mode) {
  int64_t kernel = item(call, 1, d), padding = item(call, 3, d);
  int64_t stride = al_list_size(call, 2) == 0 ? kernel : item(call, 2, d);
  int64_t dilation = dilation_arg == 0 ? 1 : item(call, dilation_arg, d);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(kernel > 0 && kernel <= INT32_MAX, AL_VALUE, 1);
  AL_NEED(stride > 0 && stride <= INT32_MAX, AL_VALUE, 2);
  AL_NEED(dilation > 0 && dilation <= INT32_MAX, AL_VALUE, (int32_t)dilation_arg);
  int64_t span = (kernel - 1) * dilation + 1;
  AL_NEED(padding >= 0 && padding <= span / 2, AL_VALUE, 3);
  AL_NEED(in > 0 && in + 2 * padding + span + stride <= INT32_MAX, AL_SHAPE, 0);
  int64_t rest = in + 2 * padding - span + (ceil_mode ? stride - 1 : 0);
  AL_NEED(rest >= 0, AL_SHAPE, 0);
  int64_t out = rest / stride + 1;
  if (ceil_mode && (out - 1) * stride >= in + padding) out--; /* the last window must begin within the input */
  AL_NEED(out > 0, AL_SHAPE, 0);
  *a = (axis){in, (int32_t)out, (int32_t)kernel, (int32_t)stride, (int32_t)padding, (int32_t)dilation};
  return AL_OK;
}

/* Planes of the tensors x, out and perhaps indices: all dimensions but the last two, and the steps in the last two. */
typedef struct planes {
  al_loop loop;
  int32_t y_step[3], x_step[3];
} planes;

AL_APART static void begin_planes(planes *p, const al_tensor *x, const al_tensor *out, const al_tensor *indices) {
  int32_t strides[3][AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  al_strides(indices, strides[2]);
  uint32_t lead = x->rank - 2u;
  for (uint32_t t = 0; t < 3; t++) {
    p->y_step[t] = strides[t][lead];
    p->x_step[t] = strides[t][lead + 1];
  }
  al_loop_begin(&p->loop, lead, x->sizes, AL_ALL_DIMS, 3, strides);
}

static al_status resize_planes(al_call *call, al_tensor *out, const al_tensor *x, int32_t height, int32_t width) {
  const int32_t four[4] = {x->sizes[0], x->rank == 4 ? x->sizes[1] : height, x->rank == 4 ? height : width, width};
  return al_resize(call, out, x->rank, four);
}

static float sum_of(const float *x, int32_t y_step, int32_t x_step, int32_t height, int32_t width) {
  al_sum sum = {0};
  for (int32_t i = 0; i < height; i++) {
    for (int32_t j = 0; j < width; j++) al_sum_add(&sum, x[i * y_step + j * x_step]);
  }
  return al_sum_value(&sum);
}

/* Row by row without compensation, as torch's avg_pool2d sums: the same bits. */
static float plain_sum_of(const float *x, int32_t y_step, int32_t x_step, int32_t height, int32_t width) {
  float sum = 0;
  for (int32_t i = 0; i < height; i++) {
    for (int32_t j = 0; j < width; j++) sum += x[i * y_step + j * x_step];
  }
  return sum;
}

static int64_t int_sum_of(const int64_t *x, int32_t y_step, int32_t x_step, int32_t height, int32_t width) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < height; i++) {
    for (int32_t j = 0; j < width; j++) sum += (uint64_t)x[i * y_step + j * x_step];
  }
  return (int64_t)sum;
}

AL_KERNEL(aten_avg_pool2d_out, "aten::avg_pool2d.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool ceil_mode = al_bool_arg(call, 4), include_padding = al_bool_arg(call, 5);
  int64_t divisor = al_int_arg_or(call, 6, 0);
  al_tensor *out = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32 || x->dtype == AL_I64, AL_DTYPE, 0);
  AL_NEED(out->dtype == x->dtype, AL_DTYPE, 7);
  AL_NEED(x->rank == 3 || x->rank == 4, AL_SHAPE, 0);
  AL_NEED(divisor != 0 || al_arg_is_null(call, 6), AL_VALUE, 6);
  axis ay, ax;
  AL_TRY(set_axis(call, &ay, 0, x->sizes[x->rank - 2], 0, ceil_mode));
  AL_TRY(set_axis(call, &ax, 1, x->sizes[x->rank - 1], 0, ceil_mode));
  AL_TRY(resize_planes(call, out, x, ay.out, ax.out));
  planes p;
  for (begin_planes(&p, x, out, out); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      int32_t from = p.loop.offset[0] + k * p.loop.step[0], to = p.loop.offset[1] + k * p.loop.step[1];
      for (int32_t i = 0; i < ay.out; i++) {
        window wy = window_of(&ay, i);
        for (int32_t j = 0; j < ax.out; j++) {
          window wx = window_of(&ax, j);
          int32_t height = wy.end - wy.first, width = wx.end - wx.first;
          int32_t start = from + wy.first * p.y_step[0] + wx.first * p.x_step[0];
          int32_t end = to + i * p.y_step[1] + j * p.x_step[1];
          int64_t by = divisor != 0      ? divisor
                       : include_padding ? (int64_t)wy.span * wx.span
                                         : (int64_t)height * width;
          if (x->dtype == AL_F32) {
            float sum = plain_sum_of((const float *)x->data + start, p.y_step[0], p.x_step[0], height, width);
            ((float *)out->data)[end] = sum / (float)by;
          } else {
            int64_t sum = int_sum_of((const int64_t *)x->data + start, p.y_step[0], p.x_step[0], height, width);
            ((int64_t *)out->data)[end] = by == -1 ? (int64_t)(0 - (uint64_t)sum) : sum / by;
          }
        }
      }
    }
  }
  return AL_OK;
}

/* Position of the greatest element of a window, the last NaN if there is one; -1 of an empty one. */
static int32_t greatest(const al_tensor *x, int32_t from, int32_t y_step, int32_t x_step, const axis *ay,
                        const axis *ax, const window *wy, const window *wx) {
  int32_t best = -1;
  int64_t most = 0;
  float most_f = 0;
  for (int32_t i = wy->first; i < wy->end; i += ay->dilation) {
    for (int32_t j = wx->first; j < wx->end; j += ax->dilation) {
      uint32_t k = (uint32_t)(from + i * y_step + j * x_step);
      bool better;
      if (x->dtype == AL_F32) {
        float v = ((const float *)x->data)[k];
        better = best < 0 || v > most_f || v != v;
        if (better) most_f = v;
      } else {
        int64_t v = al_load_int(x->data, k, x->dtype);
        better = best < 0 || v > most;
        if (better) most = v;
      }
      if (better) best = i * ax->in + j;
    }
  }
  return best;
}

AL_KERNEL(aten_max_pool2d_with_indices_out, "aten::max_pool2d_with_indices.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool ceil_mode = al_bool_arg(call, 5);
  al_tensor *out = al_out_arg(call, 6), *indices = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(al_computes(x->dtype) && x->dtype != AL_BOOL, AL_DTYPE, 0);
  AL_NEED(out->dtype == x->dtype, AL_DTYPE, 6);
  AL_NEED(indices->dtype == AL_I64, AL_DTYPE, 7);
  AL_NEED(x->rank == 3 || x->rank == 4, AL_SHAPE, 0);
  axis ay, ax;
  AL_TRY(set_axis(call, &ay, 0, x->sizes[x->rank - 2], 4, ceil_mode));
  AL_TRY(set_axis(call, &ax, 1, x->sizes[x->rank - 1], 4, ceil_mode));
  AL_TRY(resize_planes(call, out, x, ay.out, ax.out));
  AL_TRY(resize_planes(call, indices, x, ay.out, ax.out));
  planes p;
  for (begin_planes(&p, x, out, indices); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      int32_t from = p.loop.offset[0] + k * p.loop.step[0];
      for (int32_t i = 0; i < ay.out; i++) {
        window wy = window_of(&ay, i);
        for (int32_t j = 0; j < ax.out; j++) {
          window wx = window_of(&ax, j);
          int32_t best = greatest(x, from, p.y_step[0], p.x_step[0], &ay, &ax, &wy, &wx);
          AL_NEED(best >= 0, AL_SHAPE, 0);
          uint32_t at = (uint32_t)(from + best / ax.in * p.y_step[0] + best % ax.in * p.x_step[0]);
          uint32_t to = (uint32_t)(p.loop.offset[1] + k * p.loop.step[1] + i * p.y_step[1] + j * p.x_step[1]);
          if (x->dtype == AL_F32) {
            ((float *)out->data)[to] = ((const float *)x->data)[at];
          } else {
            al_store_int(out->data, to, x->dtype, al_load_int(x->data, at, x->dtype));
          }
          ((int64_t *)indices->data)[p.loop.offset[2] + k * p.loop.step[2] + i * p.y_step[2] + j * p.x_step[2]] = best;
        }
      }
    }
  }
  return AL_OK;
}

AL_KERNEL(aten__adaptive_avg_pool2d_out, "aten::_adaptive_avg_pool2d.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool two = al_list_size(call, 1) == 2;
  int64_t height = two ? al_int_item(call, 1, 0) : -1, width = two ? al_int_item(call, 1, 1) : -1;
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, 2);
  AL_NEED(x->rank == 3 || x->rank == 4, AL_SHAPE, 0);
  AL_NEED(height >= 0 && height <= INT32_MAX && width >= 0 && width <= INT32_MAX, AL_VALUE, 1);
  AL_TRY(resize_planes(call, out, x, (int32_t)height, (int32_t)width));
  if (al_numel(out) == 0) return AL_OK;
  int32_t in_y = x->sizes[x->rank - 2], in_x = x->sizes[x->rank - 1];
  AL_NEED(in_y > 0 && in_x > 0, AL_SHAPE, 0);
  planes p;
  for (begin_planes(&p, x, out, out); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      const float *from = (const float *)x->data + p.loop.offset[0] + k * p.loop.step[0];
      float *to = (float *)out->data + p.loop.offset[1] + k * p.loop.step[1];
      for (int32_t i = 0; i < (int32_t)height; i++) {
        int32_t y = (int32_t)(i * (int64_t)in_y / height);
        int32_t rows = (int32_t)(((i + 1) * (int64_t)in_y + height - 1) / height) - y;
        for (int32_t j = 0; j < (int32_t)width; j++) {
          int32_t left = (int32_t)(j * (int64_t)in_x / width);
          int32_t columns = (int32_t)(((j + 1) * (int64_t)in_x + width - 1) / width) - left;
          float sum = sum_of(from + y * p.y_step[0] + left * p.x_step[0], p.y_step[0], p.x_step[0], rows, columns);
          to[i * p.y_step[1] + j * p.x_step[1]] = sum / (float)rows / (float)columns;
        }
      }
    }
  }
  return AL_OK;
}
