/* Convolution of float32 tensors, 1-D and 2-D, plain and transposed. A 1-D one is a 2-D one of height 1. */
#include "nn.h"
#include "simd.h"

/* One spatial dimension. For the transposed convolution `in` and `out` are still the sizes of input and output. */
typedef struct axis {
  int32_t in, out, kernel, stride, padding, dilation;
  int32_t x_step, w_step, y_step;
} axis;

typedef struct conv {
  axis dims[2]; /* height, width */
  int32_t batch, groups, in_channels, out_channels; /* of a group */
  const float *x, *w, *bias;                        /* bias may be NULL */
  float *y;
  int32_t x_batch, x_channel, w_in, w_out, y_batch, y_channel;
} conv;

/* Kernel positions that lie within the input: from `first` in steps of `step`, `count` of them; `at` is the first
 * one's position in the input and `move` the way to the next one's. */
typedef struct taps {
  int32_t first, step, count, at, move;
} taps;

static taps taps_of(const axis *a, int32_t y) {
  int32_t start = y * a->stride - a->padding;
  int32_t first = start < 0 ? (-start - 1) / a->dilation + 1 : 0;
  int32_t end = start >= a->in ? 0 : (a->in - 1 - start) / a->dilation + 1;
  if (end > a->kernel) end = a->kernel;
  if (first >= end) return (taps){0};
  return (taps){first, 1, end - first, start + first * a->dilation, end - first > 1 ? a->dilation : 0};
}

/* Input position i and kernel position k meet in output i * stride - padding + k * dilation. */
static taps taps_of_transposed(const axis *a, int32_t y) {
  taps t = {0};
  for (int32_t k = 0; k < a->kernel; k++) {
    int32_t from = y + a->padding - k * a->dilation;
    if (from < 0) break;
    if (from % a->stride != 0 || from / a->stride >= a->in) continue;
    int32_t i = from / a->stride;
    if (t.count == 0) {
      t.first = k;
      t.at = i;
    } else if (t.count == 1) {
      t.step = k - t.first;
      t.move = i - t.at;
    }
    t.count++;
  }
  return t;
}

/* One number of the output. The longest of the two inner loops runs inside. */
static float sum_at(const conv *c, const float *x, const float *w, const taps *ty, const taps *tx) {
  const axis *ay = &c->dims[0], *ax = &c->dims[1];
  al_sum sum = {0};
  int32_t x_move = tx->move * ax->x_step, w_move = tx->step * ax->w_step;
  bool across = tx->count > c->in_channels;
  for (int32_t i = 0; i < ty->count; i++) {
    const float *xi = x + (ty->at + i * ty->move) * ay->x_step + tx->at * ax->x_step;
    const float *wi = w + (ty->first + i * ty->step) * ay->w_step + tx->first * ax->w_step;
    if (across) {
      for (int32_t k = 0; k < c->in_channels; k++) {
        al_sum_add(&sum, al_dot_run(xi + k * c->x_channel, x_move, wi + k * c->w_in, w_move, (uint32_t)tx->count));
      }
    } else {
      for (int32_t j = 0; j < tx->count; j++) {
        al_sum_add(&sum, al_dot_run(xi + j * x_move, c->x_channel, wi + j * w_move, c->w_in,
                                    (uint32_t)c->in_channels));
      }
    }
  }
  return al_sum_value(&sum);
}

static void run(const conv *c, taps (*taps_at)(const axis *, int32_t)) {
  const axis *ay = &c->dims[0], *ax = &c->dims[1];
  for (int32_t n = 0; n < c->batch; n++) {
    for (int32_t y = 0; y < ay->out; y++) {
      taps ty = taps_at(ay, y);
      for (int32_t x = 0; x < ax->out; x++) {
        taps tx = taps_at(ax, x);
        float *to = c->y + n * c->y_batch + y * ay->y_step + x * ax->y_step;
        for (int32_t g = 0; g < c->groups; g++) {
          const float *from = c->x + n * c->x_batch + g * c->in_channels * c->x_channel;
          for (int32_t o = 0; o < c->out_channels; o++) {
            int32_t channel = g * c->out_channels + o;
            /* weights of a group follow each other in the first dimension, which is the input's if transposed */
            const float *w = c->w + o * c->w_out +
                             g * (taps_at == taps_of ? c->out_channels * c->w_out : c->in_channels * c->w_in);
            float sum = sum_at(c, from, w, &ty, &tx);
            to[channel * c->y_channel] = c->bias == NULL ? sum : sum + c->bias[channel];
          }
        }
      }
    }
  }
}

/* Item `k` of a list argument that has one entry or one for each of `count` dimensions. */
static int64_t item(al_call *call, uint32_t argument, uint32_t k, uint32_t count) {
  uint32_t size = al_list_size(call, argument);
  if (size != 1 && size != count) {
    al_fail(call, AL_VALUE, (int32_t)argument);
    return 0;
  }
  return al_int_item(call, argument, size == 1 ? 0 : k);
}

/* Checks one dimension and computes its output size. All positions fit int32 afterwards. */
static al_status set_axis(al_call *call, axis *a, bool transposed, int64_t stride, int64_t padding, int64_t dilation,
                          int64_t output_padding) {
  AL_NEED(stride > 0 && stride <= INT32_MAX, AL_VALUE, 3);
  AL_NEED(padding >= 0 && padding <= INT32_MAX, AL_VALUE, 4);
  AL_NEED(dilation > 0 && dilation <= INT32_MAX, AL_VALUE, 5);
  AL_NEED(output_padding >= 0, AL_VALUE, 7);
  AL_NEED(a->kernel > 0, AL_SHAPE, 1);
  int64_t span = dilation * (a->kernel - 1) + 1; /* of the kernel */
  int64_t size;
  if (transposed) {
    AL_NEED(output_padding < stride || output_padding < dilation, AL_VALUE, 7);
    int64_t covered = (a->in - (int64_t)1) * stride + span + output_padding;
    AL_NEED(a->in > 0 && covered + padding <= INT32_MAX, AL_SHAPE, 0);
    size = covered - 2 * padding;
  } else {
    int64_t padded = a->in + 2 * padding;
    AL_NEED(padded <= INT32_MAX && span <= padded, AL_SHAPE, 0);
    size = (padded - span) / stride + 1;
  }
  AL_NEED(size > 0, AL_SHAPE, 0);
  a->out = (int32_t)size;
  a->stride = (int32_t)stride;
  a->padding = (int32_t)padding;
  a->dilation = (int32_t)dilation;
  return AL_OK;
}

static void set_steps(conv *c, const int32_t *x, const int32_t *w, const int32_t *y, uint32_t spatial, bool transposed) {
  c->x_batch = x[0];
  c->x_channel = x[1];
  c->y_batch = y[0];
  c->y_channel = y[1];
  c->w_out = w[transposed ? 1 : 0];
  c->w_in = w[transposed ? 0 : 1];
  for (uint32_t d = 0; d < spatial; d++) {
    axis *a = &c->dims[2 - spatial + d];
    a->x_step = x[2 + d];
    a->w_step = w[2 + d];
    a->y_step = y[2 + d];
  }
}

AL_KERNEL(aten_convolution_out, "aten::convolution.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *w = al_tensor_arg(call, 1);
  const al_tensor *bias = al_optional_tensor_arg(call, 2);
  bool transposed = al_bool_arg(call, 6);
  int64_t groups = al_int_arg(call, 8);
  al_tensor *out = al_out_arg(call, 9);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(w->dtype == AL_F32, AL_DTYPE, 1);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, 9);
  AL_NEED(x->rank == 3 || x->rank == 4, AL_SHAPE, 0);
  AL_NEED(w->rank == x->rank, AL_SHAPE, 1);
  AL_NEED(groups > 0 && groups <= INT32_MAX && w->sizes[0] % groups == 0, AL_VALUE, 8);
  int64_t in_channels = transposed ? w->sizes[0] : w->sizes[1] * groups;
  int64_t out_channels = transposed ? w->sizes[1] * groups : w->sizes[0];
  AL_NEED(in_channels > 0 && x->sizes[1] == in_channels && out_channels <= INT32_MAX, AL_SHAPE, 1);
  if (bias != NULL) {
    AL_NEED(bias->dtype == AL_F32, AL_DTYPE, 2);
    AL_NEED(bias->rank == 1 && bias->sizes[0] == out_channels, AL_SHAPE, 2);
  }
  uint32_t spatial = x->rank - 2u;
  conv c = {.dims = {{1, 1, 1, 1, 0, 1, 0, 0, 0}}, .x = x->data, .w = w->data, .batch = x->sizes[0],
            .bias = bias == NULL ? NULL : bias->data, .y = out->data, .groups = (int32_t)groups,
            .in_channels = (int32_t)(in_channels / groups), .out_channels = (int32_t)(out_channels / groups)};
  int32_t sizes[4] = {x->sizes[0], (int32_t)out_channels, 0, 0};
  for (uint32_t d = 0; d < spatial; d++) {
    axis *a = &c.dims[2 - spatial + d];
    a->in = x->sizes[2 + d];
    a->kernel = w->sizes[2 + d];
    int64_t stride = item(call, 3, d, spatial), padding = item(call, 4, d, spatial);
    int64_t dilation = item(call, 5, d, spatial), extra = item(call, 7, d, spatial);
    AL_RETURN_IF_FAILED(call);
    AL_TRY(set_axis(call, a, transposed, stride, padding, dilation, extra));
    sizes[2 + d] = a->out;
  }
  AL_TRY(al_resize(call, out, x->rank, sizes));
  if (al_numel(out) == 0) return AL_OK;
  int32_t x_strides[AL_MAX_RANK], w_strides[AL_MAX_RANK], y_strides[AL_MAX_RANK];
  al_strides(x, x_strides);
  al_strides(w, w_strides);
  al_strides(out, y_strides);
  set_steps(&c, x_strides, w_strides, y_strides, spatial, transposed);
  run(&c, transposed ? taps_of_transposed : taps_of);
  return AL_OK;
}
