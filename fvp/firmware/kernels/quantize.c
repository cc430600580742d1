/* quantized_decomposed: conversions between float32 and integers with a scale and a zero point.
 *
 * Numbers as torch computes them on the CPU: one tensor-wide or per-channel float32 scale means float32 arithmetic,
 * float64 scales mean float64. Where torch leaves the result to the processor (int32 past its ends, NaN) this is
 * what Arm's conversion gives: the end, 0. */
#include "nn.h"
#include "simd.h"

static bool is_quantized_dtype(int64_t dtype) {
  return dtype == AL_U8 || dtype == AL_I8 || dtype == AL_I16 || dtype == AL_I32;
}

static bool in_range(int64_t low, int64_t high, uint8_t dtype) {
  int64_t least = dtype == AL_U8 ? 0 : dtype == AL_I8 ? INT8_MIN : dtype == AL_I16 ? INT16_MIN : INT32_MIN;
  int64_t most = dtype == AL_U8 ? UINT8_MAX : dtype == AL_I8 ? INT8_MAX : dtype == AL_I16 ? INT16_MAX : INT32_MAX;
  return least <= low && low <= high && high <= most;
}

static bool is_scale(const al_tensor *t) {
  return t->dtype == AL_F32 || t->dtype == AL_F64;
}

static bool is_zero_point(const al_tensor *t) {
  return t->dtype == AL_I32 || t->dtype == AL_I64;
}

static double scale_at(const al_tensor *t, int32_t i) {
  return t->dtype == AL_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static int64_t zero_point_at(const al_tensor *t, int32_t i) {
  return t->dtype == AL_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
}

/* The arguments quant_min, quant_max and dtype, which begin at `first`. */
static al_status check_quantize(al_call *call, uint32_t first, const al_tensor *x, const al_tensor *out) {
  int64_t low = al_int_arg(call, first), high = al_int_arg(call, first + 1), dtype = al_int_arg(call, first + 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(is_quantized_dtype(dtype) && dtype == out->dtype, AL_DTYPE, (int32_t)first + 2);
  AL_NEED(in_range(low, high, out->dtype), AL_VALUE, (int32_t)first);
  return AL_OK;
}

/* The argument dtype, then `out_dtype`, which may be None. */
static al_status check_dequantize(al_call *call, uint32_t first, const al_tensor *x, const al_tensor *out) {
  int64_t dtype = al_int_arg(call, first), out_dtype = al_int_arg_or(call, first + 1, AL_F32);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(is_quantized_dtype(dtype) && dtype == x->dtype, AL_DTYPE, (int32_t)first);
  AL_NEED(out_dtype == AL_F32 && out->dtype == AL_F32, AL_DTYPE, (int32_t)first + 1);
  return AL_OK;
}

AL_APART static void begin_pair(al_loop *loop, const al_tensor *x, const al_tensor *out) {
  int32_t strides[2][AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  al_loop_begin(loop, x->rank, x->sizes, AL_ALL_DIMS, 2, strides);
}

static al_status quantize(al_call *call, const al_tensor *x, al_tensor *out, double scale, int64_t zero_point) {
  AL_TRY(check_quantize(call, 3, x, out));
  AL_NEED(scale != 0, AL_VALUE, 1);
  AL_TRY(al_resize_like(call, out, x));
  al_quantizer q = {(float)(1.0 / scale), (float)zero_point, (float)al_int_arg(call, 3), (float)al_int_arg(call, 4)};
  const float *from = x->data;
  uint8_t *to = out->data;
  if (al_same_layout(x, out)) {
    al_quantize_run(from, to, out->dtype, al_numel(x), &q);
    return AL_OK;
  }
  int32_t size = (int32_t)al_dtype_size((al_dtype)out->dtype);
  al_loop w;
  for (begin_pair(&w, x, out); w.more; al_loop_next(&w)) {
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      al_quantize_run(from + w.offset[0] + k * w.step[0], to + (w.offset[1] + k * w.step[1]) * size, out->dtype, 1, &q);
    }
  }
  return AL_OK;
}

static al_status dequantize(al_call *call, const al_tensor *x, al_tensor *out, double scale, int64_t zero_point) {
  AL_TRY(check_dequantize(call, 5, x, out));
  AL_TRY(al_resize_like(call, out, x));
  const uint8_t *from = x->data;
  float *to = out->data;
  float s = (float)scale, zero = (float)zero_point;
  if (al_same_layout(x, out)) {
    al_dequantize_run(from, x->dtype, to, al_numel(x), s, zero);
    return AL_OK;
  }
  int32_t size = (int32_t)al_dtype_size((al_dtype)x->dtype);
  al_loop w;
  for (begin_pair(&w, x, out); w.more; al_loop_next(&w)) {
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      al_dequantize_run(from + (w.offset[0] + k * w.step[0]) * size, x->dtype, to + w.offset[1] + k * w.step[1], 1, s,
                        zero);
    }
  }
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_quantize_per_tensor_out, "quantized_decomposed::quantize_per_tensor.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  double scale = al_double_arg(call, 1);
  int64_t zero_point = al_int_arg(call, 2);
  al_tensor *out = al_out_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  return quantize(call, x, out, scale, zero_point);
}

AL_KERNEL(quantized_decomposed_dequantize_per_tensor_out, "quantized_decomposed::dequantize_per_tensor.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  double scale = al_double_arg(call, 1);
  int64_t zero_point = al_int_arg(call, 2);
  al_tensor *out = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  return dequantize(call, x, out, scale, zero_point);
}

static al_status check_single(al_call *call, const al_tensor *scale, const al_tensor *zero_point) {
  AL_NEED(is_scale(scale), AL_DTYPE, 1);
  AL_NEED(is_zero_point(zero_point), AL_DTYPE, 2);
  AL_NEED(al_numel(scale) == 1, AL_SHAPE, 1);
  AL_NEED(al_numel(zero_point) == 1, AL_SHAPE, 2);
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_quantize_per_tensor_Tensor_out, "quantized_decomposed::quantize_per_tensor.Tensor_out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scale = al_tensor_arg(call, 1), *zero_point = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_single(call, scale, zero_point));
  return quantize(call, x, out, scale_at(scale, 0), zero_point_at(zero_point, 0));
}

AL_KERNEL(quantized_decomposed_dequantize_per_tensor_Tensor_out,
          "quantized_decomposed::dequantize_per_tensor.Tensor_out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scale = al_tensor_arg(call, 1), *zero_point = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_single(call, scale, zero_point));
  return dequantize(call, x, out, scale_at(scale, 0), zero_point_at(zero_point, 0));
}

/* Walks x, out, scales and zero points (tensors 0 to 3) together. `axis` -1: per token, one scale for each index of
 * all dimensions but the last. */
AL_APART static al_status begin_broadcast(al_call *call, al_loop *loop, const al_tensor *x, const al_tensor *out,
                                 const al_tensor *scales, const al_tensor *zero_points, int32_t axis) {
  int32_t strides[4][AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  for (uint32_t t = 0; t < 2; t++) {
    const al_tensor *p = t == 0 ? scales : zero_points;
    int32_t *step = strides[2 + t];
    if (p == NULL) {
      for (uint32_t d = 0; d < AL_MAX_RANK; d++) step[d] = 0;
      continue;
    }
    AL_NEED(t == 0 ? is_scale(p) : is_zero_point(p), AL_DTYPE, 1 + (int32_t)t);
    if (axis >= 0) {
      AL_NEED(p->rank == 1 && p->sizes[0] == x->sizes[axis], AL_SHAPE, 1 + (int32_t)t);
      for (uint32_t d = 0; d < AL_MAX_RANK; d++) step[d] = 0;
      step[axis] = 1;
      continue;
    }
    AL_NEED(p->rank == x->rank, AL_SHAPE, 1 + (int32_t)t);
    al_strides(p, step);
    for (uint32_t d = 0; d < x->rank; d++) {
      bool last = d + 1 == x->rank;
      AL_NEED(p->sizes[d] == (last ? 1 : x->sizes[d]), AL_SHAPE, 1 + (int32_t)t);
      if (last) step[d] = 0;
    }
  }
  al_loop_begin(loop, x->rank, x->sizes, AL_ALL_DIMS, 4, strides);
  return AL_OK;
}

/* One element with its own scale. `wide`: in float64. Per token, torch adds the zero point before it rounds. */
static int32_t quantize_element(float x, double scale, int64_t zero_point, int64_t low, int64_t high, bool wide,
                                bool per_token) {
  double y;
  if (wide) {
    y = (double)x * (1.0 / scale);
    y = per_token ? rint(y + (double)zero_point) : rint(y) + (double)zero_point;
  } else {
    float z = x * (1.0f / (float)scale);
    y = (double)(per_token ? rintf(z + (float)zero_point) : rintf(z) + (float)zero_point);
  }
  if (y < (double)low) y = (double)low;
  if (y > (double)high) y = (double)high;
  return y != y ? 0 : (int32_t)y;
}

static al_status quantize_many(al_call *call, const al_tensor *x, const al_tensor *scales,
                               const al_tensor *zero_points, int32_t axis, uint32_t first, al_tensor *out) {
  AL_TRY(check_quantize(call, first, x, out));
  AL_TRY(al_resize_like(call, out, x));
  int64_t low = al_int_arg(call, first), high = al_int_arg(call, first + 1);
  bool wide = scales->dtype == AL_F64, per_token = axis < 0;
  uint32_t size = al_dtype_size((al_dtype)out->dtype);
  al_loop w;
  AL_TRY(begin_broadcast(call, &w, x, out, scales, zero_points, axis));
  bool fast = !wide && !per_token && w.step[0] == 1 && w.step[1] == 1 && w.step[2] == 0;
  for (; w.more; al_loop_next(&w)) {
    const float *from = (const float *)x->data + w.offset[0];
    if (fast) {
      al_quantizer q = {1.0f / (float)scale_at(scales, w.offset[2]), (float)zero_point_at(zero_points, w.offset[3]),
                        (float)low, (float)high};
      al_quantize_run(from, (uint8_t *)out->data + (uint32_t)w.offset[1] * size, out->dtype, w.run, &q);
      continue;
    }
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      int32_t y = quantize_element(from[k * w.step[0]], scale_at(scales, w.offset[2] + k * w.step[2]),
                                   zero_point_at(zero_points, w.offset[3] + k * w.step[3]), low, high, wide, per_token);
      al_store_int(out->data, (uint32_t)(w.offset[1] + k * w.step[1]), out->dtype, y);
    }
  }
  return AL_OK;
}

/* torch subtracts integers here: in int64, or in int32 where both are at most that. */
static float dequantize_element(int64_t x, int64_t zero_point, bool narrow, double scale, bool wide) {
  int64_t difference = (int64_t)((uint64_t)x - (uint64_t)zero_point);
  if (narrow) difference = (int32_t)(uint32_t)(uint64_t)difference;
  return wide ? (float)((double)difference * scale) : (float)difference * (float)scale;
}

static al_status dequantize_many(al_call *call, const al_tensor *x, const al_tensor *scales,
                                 const al_tensor *zero_points, int32_t axis, al_tensor *out) {
  AL_TRY(al_resize_like(call, out, x));
  bool wide = scales->dtype == AL_F64;
  bool narrow = zero_points != NULL && zero_points->dtype == AL_I32;
  uint32_t size = al_dtype_size((al_dtype)x->dtype);
  float *to = out->data;
  al_loop w;
  AL_TRY(begin_broadcast(call, &w, x, out, scales, zero_points, axis));
  /* (float)x - (float)zero is exact for the short types, so that the order does not matter */
  bool fast = !wide && size < 4 && w.step[0] == 1 && w.step[1] == 1 && w.step[2] == 0;
  for (; w.more; al_loop_next(&w)) {
    int64_t zero = zero_points == NULL ? 0 : zero_point_at(zero_points, w.offset[3]);
    if (fast && zero >= -(1 << 23) && zero <= 1 << 23) {
      al_dequantize_run((const uint8_t *)x->data + (uint32_t)w.offset[0] * size, x->dtype, to + w.offset[1], w.run,
                        (float)scale_at(scales, w.offset[2]), (float)zero);
      continue;
    }
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      if (zero_points != NULL) zero = zero_point_at(zero_points, w.offset[3] + k * w.step[3]);
      int64_t v = al_load_int(x->data, (uint32_t)(w.offset[0] + k * w.step[0]), x->dtype);
      to[w.offset[1] + k * w.step[1]] =
          dequantize_element(v, zero, narrow, scale_at(scales, w.offset[2] + k * w.step[2]), wide);
    }
  }
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_quantize_per_channel_out, "quantized_decomposed::quantize_per_channel.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scales = al_tensor_arg(call, 1), *zero_points = al_tensor_arg(call, 2);
  int64_t dim = al_int_arg(call, 3);
  al_tensor *out = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  int32_t axis = al_wrap_dim(dim, x->rank);
  AL_NEED(axis >= 0 && x->rank > 0, AL_INDEX, 3);
  return quantize_many(call, x, scales, zero_points, axis, 4, out);
}

AL_KERNEL(quantized_decomposed_dequantize_per_channel_out, "quantized_decomposed::dequantize_per_channel.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scales = al_tensor_arg(call, 1);
  const al_tensor *zero_points = al_optional_tensor_arg(call, 2);
  int64_t dim = al_int_arg(call, 3);
  al_tensor *out = al_out_arg(call, 8);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dequantize(call, 6, x, out));
  AL_NEED(in_range(al_int_arg(call, 4), al_int_arg(call, 5), x->dtype), AL_VALUE, 4);
  int32_t axis = al_wrap_dim(dim, x->rank);
  AL_NEED(axis >= 0 && x->rank > 0, AL_INDEX, 3);
  return dequantize_many(call, x, scales, zero_points, axis, out);
}

AL_KERNEL(quantized_decomposed_quantize_per_token_out, "quantized_decomposed::quantize_per_token.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scales = al_tensor_arg(call, 1), *zero_points = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  return quantize_many(call, x, scales, zero_points, -1, 3, out);
}

AL_KERNEL(quantized_decomposed_dequantize_per_token_out, "quantized_decomposed::dequantize_per_token.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *scales = al_tensor_arg(call, 1), *zero_points = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dequantize(call, 5, x, out));
  return dequantize_many(call, x, scales, zero_points, -1, out);
}

/* NaN if there is one. */
static void least_and_greatest(const float *x, int32_t step, uint32_t n, float *least, float *greatest) {
  *least = INFINITY;
  *greatest = -INFINITY;
  for (uint32_t i = 0; i < n; i++, x += step) {
    if (*x != *x) {
      *least = *greatest = *x;
      return;
    }
    if (*x < *least) *least = *x;
    if (*x > *greatest) *greatest = *x;
  }
}

static al_status check_qparams(al_call *call, const al_tensor *x, uint32_t dtype_arg, const al_tensor *scale,
                               const al_tensor *zero_point) {
  int64_t dtype = al_int_arg(call, dtype_arg);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(is_quantized_dtype(dtype), AL_DTYPE, (int32_t)dtype_arg);
  AL_NEED(scale->dtype == AL_F64, AL_DTYPE, (int32_t)dtype_arg + 1);
  AL_NEED(zero_point->dtype == AL_I64, AL_DTYPE, (int32_t)dtype_arg + 2);
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_choose_qparams_Tensor_out, "quantized_decomposed::choose_qparams.Tensor_out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  int64_t low = al_int_arg(call, 1), high = al_int_arg(call, 2);
  float eps = (float)al_double_arg(call, 3);
  al_tensor *scale_out = al_out_arg(call, 5), *zero_point_out = al_out_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_qparams(call, x, 4, scale_out, zero_point_out));
  AL_NEED(low <= 0 && 0 <= high && low < high && low >= INT32_MIN && high <= INT32_MAX, AL_VALUE, 1);
  AL_NEED(al_numel(x) > 0, AL_SHAPE, 0);
  AL_TRY(al_resize(call, scale_out, 1, (const int32_t[]){1}));
  AL_TRY(al_resize(call, zero_point_out, 1, (const int32_t[]){1}));
  float least, greatest;
  least_and_greatest(x->data, 1, al_numel(x), &least, &greatest);
  AL_NEED(least <= greatest, AL_VALUE, 0); /* NaN */
  if (least > 0) least = 0;
  if (greatest < 0) greatest = 0;
  float scale = (greatest - least) / (float)(high - low);
  if (scale < eps) scale = eps;
  float steps = rintf(least / scale);
  int64_t zero_point = low - (steps < -4294967296.0f ? -4294967296 : steps == steps ? (int64_t)steps : 0);
  ((double *)scale_out->data)[0] = (double)scale;
  ((int64_t *)zero_point_out->data)[0] = zero_point < low ? low : zero_point > high ? high : zero_point;
  return AL_OK;
}

/* Always for the range of int8, as torch does it. */
AL_KERNEL(quantized_decomposed_choose_qparams_per_token_asymmetric_out,
          "quantized_decomposed::choose_qparams_per_token_asymmetric.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  al_tensor *scale_out = al_out_arg(call, 2), *zero_point_out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_qparams(call, x, 1, scale_out, zero_point_out));
  AL_NEED(x->rank > 0 && x->sizes[x->rank - 1] > 0, AL_SHAPE, 0);
  uint32_t last = x->rank - 1u;
  int32_t sizes[AL_MAX_RANK], strides[3][AL_MAX_RANK];
  for (uint32_t d = 0; d < x->rank; d++) sizes[d] = d == last ? 1 : x->sizes[d];
  AL_TRY(al_resize(call, scale_out, x->rank, sizes));
  AL_TRY(al_resize(call, zero_point_out, x->rank, sizes));
  al_strides(x, strides[0]);
  al_strides(scale_out, strides[1]);
  al_strides(zero_point_out, strides[2]);
  al_loop w;
  for (al_loop_begin(&w, last, sizes, AL_ALL_DIMS, 3, strides); w.more; al_loop_next(&w)) {
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      float least, greatest;
      least_and_greatest((const float *)x->data + w.offset[0] + k * w.step[0], strides[0][last],
                         (uint32_t)x->sizes[last], &least, &greatest);
      if (least > 0) least = 0;
      if (greatest < 0) greatest = 0;
      float scale = (greatest - least) / 255.0f;
      if (scale < 1.1920929e-7f) scale = 1.1920929e-7f;
      float down = least / scale, up = greatest / scale;
      float zero_point = (down - 128.0f) + (up + 127.0f) > 0 ? -128.0f - down : 127.0f - up;
      zero_point = rintf(zero_point < -128.0f ? -128.0f : zero_point > 127.0f ? 127.0f : zero_point);
      ((double *)scale_out->data)[w.offset[1] + k * w.step[1]] = (double)scale;
      ((int64_t *)zero_point_out->data)[w.offset[2] + k * w.step[2]] =
          zero_point == zero_point ? (int64_t)zero_point : 0;
    }
  }
  return AL_OK;
}

/* Both to float32, sum, back. Arguments: a with scale, zero point, minimum and maximum, b with its four, then those of
 * the result. */
AL_KERNEL(quantized_decomposed_add_out, "quantized_decomposed::add.out") {
  const al_tensor *a = al_tensor_arg(call, 0), *b = al_tensor_arg(call, 5);
  float a_scale = (float)al_double_arg(call, 1), b_scale = (float)al_double_arg(call, 6);
  float a_zero = (float)al_int_arg(call, 2), b_zero = (float)al_int_arg(call, 7);
  double scale = al_double_arg(call, 10);
  int64_t zero_point = al_int_arg(call, 11), low = al_int_arg(call, 12), high = al_int_arg(call, 13);
  al_tensor *out = al_out_arg(call, 14);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(is_quantized_dtype(a->dtype), AL_DTYPE, 0);
  AL_NEED(a->dtype == b->dtype, AL_DTYPE, 5);
  AL_NEED(a->dtype == out->dtype, AL_DTYPE, 14);
  AL_NEED(al_same_sizes(a, b), AL_SHAPE, 5);
  AL_NEED(in_range(low, high, out->dtype), AL_VALUE, 12);
  AL_NEED(scale != 0, AL_VALUE, 10);
  AL_TRY(al_resize_like(call, out, a));
  al_quantizer q = {(float)(1.0 / scale), (float)zero_point, (float)low, (float)high};
  int32_t size = (int32_t)al_dtype_size((al_dtype)a->dtype);
  int32_t strides[3][AL_MAX_RANK];
  al_strides(a, strides[0]);
  al_strides(b, strides[1]);
  al_strides(out, strides[2]);
  al_loop w;
  for (al_loop_begin(&w, a->rank, a->sizes, AL_ALL_DIMS, 3, strides); w.more; al_loop_next(&w)) {
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      float x, y;
      al_dequantize_run((const uint8_t *)a->data + (w.offset[0] + k * w.step[0]) * size, a->dtype, &x, 1, a_scale,
                        a_zero);
      al_dequantize_run((const uint8_t *)b->data + (w.offset[1] + k * w.step[1]) * size, b->dtype, &y, 1, b_scale,
                        b_zero);
      x += y;
      al_quantize_run(&x, (uint8_t *)out->data + (w.offset[2] + k * w.step[2]) * size, out->dtype, 1, &q);
    }
  }
  return AL_OK;
}
