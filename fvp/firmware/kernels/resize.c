/* Images to another size or along a grid: upsample_nearest2d, upsample_bilinear2d, _upsample_bilinear2d_aa and
 * grid_sampler_2d. Positions are computed in float32, as torch does it. */
#include <string.h>

#include "nn.h"

/* One dimension: input and output size, and input elements per output element. */
typedef struct axis {
  int32_t in, out;
  float scale;
} axis;

/* Planes of x and out; steps of both in the last two dimensions. */
typedef struct planes {
  al_loop loop;
  int32_t y_step[2], x_step[2];
} planes;

AL_APART static void begin_planes(planes *p, const al_tensor *x, const al_tensor *out) {
  int32_t strides[2][AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  for (uint32_t t = 0; t < 2; t++) {
    p->y_step[t] = strides[t][2];
    p->x_step[t] = strides[t][3];
  }
  al_loop_begin(&p->loop, 2, x->sizes, AL_ALL_DIMS, 2, strides);
}

/* Truncated and brought into 0..limit. */
static int32_t index_of(float position, int32_t limit) {
  return !(position > 0) ? 0 : position >= (float)limit ? limit : (int32_t)position;
}

static al_status check_images(al_call *call, const al_tensor *x, const al_tensor *out) {
  AL_NEED(out->dtype == x->dtype, AL_DTYPE, -1);
  AL_NEED(x->rank == 4 && x->sizes[2] > 0 && x->sizes[3] > 0, AL_SHAPE, 0);
  return AL_OK;
}

/* Sizes from a list of sizes or a list of factors, of which one is None; 0 in `factors` for the other. */
static al_status sizes_of(al_call *call, const al_tensor *x, uint32_t size_arg, uint32_t factor_arg, axis *axes,
                          double *factors) {
  bool by_size = !al_arg_is_null(call, size_arg), by_factor = !al_arg_is_null(call, factor_arg);
  AL_NEED(by_size != by_factor, AL_VALUE, (int32_t)size_arg);
  uint32_t list = by_size ? size_arg : factor_arg;
  AL_NEED(al_list_size(call, list) == 2, AL_VALUE, (int32_t)list);
  for (uint32_t d = 0; d < 2; d++) {
    int32_t in = x->sizes[2 + d];
    factors[d] = by_factor ? al_double_item(call, factor_arg, d) : 0;
    double size = by_factor ? in * factors[d] : (double)al_int_item(call, size_arg, d);
    AL_RETURN_IF_FAILED(call);
    AL_NEED(size >= 1 && size <= INT32_MAX, AL_VALUE, (int32_t)list);
    axes[d] = (axis){in, (int32_t)size, 0};
  }
  return AL_OK;
}

static al_status resize(al_call *call, const al_tensor *x, al_tensor *out, const axis *axes) {
  return al_resize(call, out, 4, (const int32_t[]){x->sizes[0], x->sizes[1], axes[0].out, axes[1].out});
}

static float scale_of(const axis *a, double factor) {
  return factor > 0 ? (float)(1.0 / factor) : (float)a->in / (float)a->out;
}

static float linear_scale_of(const axis *a, bool align_corners, double factor) {
  if (!align_corners) return scale_of(a, factor);
  return a->out > 1 ? (float)(a->in - 1) / (float)(a->out - 1) : 0;
}

static int32_t nearest(const axis *a, int32_t i) {
  if (a->out == a->in) return i;
  if (a->out == 2 * (int64_t)a->in) return i / 2;
  return index_of(floorf((float)i * a->scale), a->in - 1);
}

AL_KERNEL(aten_upsample_nearest2d_vec_out, "aten::upsample_nearest2d.vec_out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_images(call, x, out));
  axis axes[2];
  double factors[2];
  AL_TRY(sizes_of(call, x, 1, 2, axes, factors));
  AL_TRY(resize(call, x, out, axes));
  for (uint32_t d = 0; d < 2; d++) axes[d].scale = scale_of(&axes[d], factors[d]);
  int32_t size = (int32_t)al_dtype_size((al_dtype)x->dtype);
  planes p;
  for (begin_planes(&p, x, out); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      for (int32_t i = 0; i < axes[0].out; i++) {
        int32_t y = p.loop.offset[0] + k * p.loop.step[0] + nearest(&axes[0], i) * p.y_step[0];
        for (int32_t j = 0; j < axes[1].out; j++) {
          int32_t from = y + nearest(&axes[1], j) * p.x_step[0];
          int32_t to = p.loop.offset[1] + k * p.loop.step[1] + i * p.y_step[1] + j * p.x_step[1];
          memmove((uint8_t *)out->data + to * size, (const uint8_t *)x->data + from * size, (size_t)size);
        }
      }
    }
  }
  return AL_OK;
}

/* Two neighbours and the weight of the second. */
typedef struct between {
  int32_t first, second;
  float weight;
} between;

static between between_of(const axis *a, bool align_corners, int32_t i) {
  float position = align_corners ? a->scale * (float)i : a->scale * ((float)i + 0.5f) - 0.5f;
  if (!(position > 0)) position = 0;
  int32_t first = index_of(position, a->in - 1);
  float weight = position - (float)first;
  return (between){first, first + (first < a->in - 1), weight > 1 ? 1 : weight};
}

AL_KERNEL(aten_upsample_bilinear2d_vec_out, "aten::upsample_bilinear2d.vec_out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool align_corners = al_bool_arg(call, 2);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_images(call, x, out));
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  axis axes[2];
  double factors[2];
  AL_TRY(sizes_of(call, x, 1, 3, axes, factors));
  AL_TRY(resize(call, x, out, axes));
  for (uint32_t d = 0; d < 2; d++) axes[d].scale = linear_scale_of(&axes[d], align_corners, factors[d]);
  planes p;
  for (begin_planes(&p, x, out); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      const float *from = (const float *)x->data + p.loop.offset[0] + k * p.loop.step[0];
      float *to = (float *)out->data + p.loop.offset[1] + k * p.loop.step[1];
      for (int32_t i = 0; i < axes[0].out; i++) {
        between y = between_of(&axes[0], align_corners, i);
        const float *upper = from + y.first * p.y_step[0], *lower = from + y.second * p.y_step[0];
        for (int32_t j = 0; j < axes[1].out; j++) {
          between b = between_of(&axes[1], align_corners, j);
          int32_t left = b.first * p.x_step[0], right = b.second * p.x_step[0];
          float high = (1 - b.weight) * upper[left] + b.weight * upper[right];
          float low = (1 - b.weight) * lower[left] + b.weight * lower[right];
          to[i * p.y_step[1] + j * p.x_step[1]] = (1 - y.weight) * high + y.weight * low;
        }
      }
    }
  }
  return AL_OK;
}

/* A triangle as wide as an output element, over input elements `first` to `end`. */
typedef struct triangle {
  int32_t first, end;
  float center, slope, total;
} triangle;

static float weight_at(const triangle *t, int32_t i) {
  float distance = fabsf(((float)i - t->center + 0.5f) * t->slope);
  return distance < 1 ? 1 - distance : 0;
}

static triangle triangle_of(const axis *a, int32_t i) {
  if (a->in == a->out) return (triangle){i, i + 1, (float)i + 0.5f, 0, 1}; /* torch leaves it as it is */
  float width = a->scale > 1 ? a->scale : 1;
  triangle t = {.center = a->scale * ((float)i + 0.5f), .slope = 1 / width};
  t.first = index_of(t.center - width + 0.5f, a->in);
  t.end = index_of(t.center + width + 0.5f, a->in);
  for (int32_t k = t.first; k < t.end; k++) t.total += weight_at(&t, k);
  if (t.total == 0) t.total = 1; /* an absurd scale: no element is near */
  return t;
}

static float smooth(const float *x, int32_t y_step, int32_t x_step, const triangle *ty, const triangle *tx) {
  al_sum sum = {0};
  for (int32_t i = ty->first; i < ty->end; i++) {
    al_sum row = {0};
    for (int32_t j = tx->first; j < tx->end; j++) {
      al_sum_add(&row, weight_at(tx, j) / tx->total * x[i * y_step + j * x_step]);
    }
    al_sum_add(&sum, weight_at(ty, i) / ty->total * al_sum_value(&row));
  }
  return al_sum_value(&sum);
}

AL_KERNEL(aten__upsample_bilinear2d_aa_out, "aten::_upsample_bilinear2d_aa.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool align_corners = al_bool_arg(call, 2);
  al_tensor *out = al_out_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_images(call, x, out));
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(al_list_size(call, 1) == 2, AL_VALUE, 1);
  axis axes[2];
  for (uint32_t d = 0; d < 2; d++) {
    int64_t size = al_int_item(call, 1, d);
    double factor = al_arg_is_null(call, 3 + d) ? 0 : al_double_arg(call, 3 + d);
    AL_RETURN_IF_FAILED(call);
    AL_NEED(size >= 1 && size <= INT32_MAX, AL_VALUE, 1);
    axes[d] = (axis){x->sizes[2 + d], (int32_t)size, 0};
    axes[d].scale = linear_scale_of(&axes[d], align_corners, factor);
  }
  AL_TRY(resize(call, x, out, axes));
  planes p;
  for (begin_planes(&p, x, out); p.loop.more; al_loop_next(&p.loop)) {
    for (int32_t k = 0; k < (int32_t)p.loop.run; k++) {
      const float *from = (const float *)x->data + p.loop.offset[0] + k * p.loop.step[0];
      float *to = (float *)out->data + p.loop.offset[1] + k * p.loop.step[1];
      for (int32_t i = 0; i < axes[0].out; i++) {
        triangle ty = triangle_of(&axes[0], i);
        for (int32_t j = 0; j < axes[1].out; j++) {
          triangle tx = triangle_of(&axes[1], j);
          to[i * p.y_step[1] + j * p.x_step[1]] = smooth(from, p.y_step[0], p.x_step[0], &ty, &tx);
        }
      }
    }
  }
  return AL_OK;
}

/* Numbers as in torch's schema. */
enum { BILINEAR = 0, NEAREST = 1, BICUBIC = 2 };
enum { ZEROS = 0, BORDER = 1, REFLECTION = 2 };

typedef struct image {
  const float *data;
  int32_t height, width, y_step, x_step;
  uint8_t padding;
  bool align_corners;
} image;

/* From -1..1 to elements. */
static float unnormalize(float position, int32_t size, bool align_corners) {
  return align_corners ? (position + 1) / 2 * (float)(size - 1) : ((position + 1) * (float)size - 1) / 2;
}

static float reflect(float x, float low, float span) {
  if (span <= 0) return 0;
  x = fabsf(x - low);
  float rest = fmodf(x, span);
  return (fmodf(floorf(x / span), 2) == 0 ? rest : span - rest) + low;
}

static float pad(const image *m, float x, int32_t size) {
  if (m->padding == ZEROS) return x;
  if (m->padding == REFLECTION) {
    x = m->align_corners ? reflect(x, 0, (float)(size - 1)) : reflect(x, -0.5f, (float)size);
  }
  return !(x > 0) ? 0 : x > (float)(size - 1) ? (float)(size - 1) : x;
}

/* Element at whole numbers, 0 outside. */
static float pixel(const image *m, float y, float x) {
  if (!(y >= 0 && y < (float)m->height && x >= 0 && x < (float)m->width)) return 0;
  return m->data[(int32_t)y * m->y_step + (int32_t)x * m->x_step];
}

static float bilinear(const image *m, float y, float x) {
  y = pad(m, y, m->height);
  x = pad(m, x, m->width);
  float top = floorf(y), left = floorf(x);
  float b = y - top, r = x - left;
  return (1 - b) * (1 - r) * pixel(m, top, left) + (1 - b) * r * pixel(m, top, left + 1) +
         b * (1 - r) * pixel(m, top + 1, left) + b * r * pixel(m, top + 1, left + 1);
}

/* Keys' cubic convolution with a = -0.75, for the four elements around a position t after the second. */
static void cubic_weights(float t, float *w) {
  const float a = -0.75f;
  float d = t + 1, e = 1 - t, f = 2 - t;
  w[0] = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * e - (a + 3)) * e * e + 1;
  w[3] = ((a * f - 5 * a) * f + 8 * a) * f - 4 * a;
}

static float bicubic(const image *m, float y, float x) {
  float top = floorf(y), left = floorf(x), wy[4], wx[4], sum = 0;
  cubic_weights(y - top, wy);
  cubic_weights(x - left, wx);
  for (int32_t i = 0; i < 4; i++) {
    float row = 0;
    float at = pad(m, top - 1 + (float)i, m->height);
    for (int32_t j = 0; j < 4; j++) row += wx[j] * pixel(m, truncf(at), truncf(pad(m, left - 1 + (float)j, m->width)));
    sum += wy[i] * row;
  }
  return sum;
}

AL_KERNEL(aten_grid_sampler_2d_out, "aten::grid_sampler_2d.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *grid = al_tensor_arg(call, 1);
  int64_t mode = al_int_arg(call, 2), padding = al_int_arg(call, 3);
  bool align_corners = al_bool_arg(call, 4);
  al_tensor *out = al_out_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(grid->dtype == AL_F32, AL_DTYPE, 1);
  AL_TRY(check_images(call, x, out));
  AL_NEED(grid->rank == 4 && grid->sizes[0] == x->sizes[0] && grid->sizes[3] == 2, AL_SHAPE, 1);
  AL_NEED(mode >= BILINEAR && mode <= BICUBIC, AL_VALUE, 2);
  AL_NEED(padding >= ZEROS && padding <= REFLECTION, AL_VALUE, 3);
  int32_t height = grid->sizes[1], width = grid->sizes[2];
  AL_TRY(al_resize(call, out, 4, (const int32_t[]){x->sizes[0], x->sizes[1], height, width}));
  if (al_numel(out) == 0) return AL_OK;
  int32_t xs[AL_MAX_RANK], gs[AL_MAX_RANK], os[AL_MAX_RANK];
  al_strides(x, xs);
  al_strides(grid, gs);
  al_strides(out, os);
  image m = {NULL, x->sizes[2], x->sizes[3], xs[2], xs[3], (uint8_t)padding, align_corners};
  for (int32_t n = 0; n < x->sizes[0]; n++) {
    for (int32_t i = 0; i < height; i++) {
      for (int32_t j = 0; j < width; j++) {
        const float *at = (const float *)grid->data + n * gs[0] + i * gs[1] + j * gs[2];
        float px = unnormalize(at[0], m.width, align_corners), py = unnormalize(at[gs[3]], m.height, align_corners);
        for (int32_t c = 0; c < x->sizes[1]; c++) {
          m.data = (const float *)x->data + n * xs[0] + c * xs[1];
          float v = mode == BILINEAR  ? bilinear(&m, py, px)
                    : mode == NEAREST ? pixel(&m, rintf(pad(&m, py, m.height)), rintf(pad(&m, px, m.width)))
                                      : bicubic(&m, py, px);
          ((float *)out->data)[n * os[0] + c * os[1] + i * os[2] + j * os[3]] = v;
        }
      }
    }
  }
  return AL_OK;
}
