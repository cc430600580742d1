/* Operators that make tensors of nothing but numbers. */
#include <math.h>

#include "move.h"

/* Sizes from argument 0. */
static al_status resize_to_list(al_call *call, al_tensor *out) {
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank;
  AL_TRY(al_size_list(call, 0, sizes, &rank));
  return al_resize(call, out, rank, sizes);
}

static void fill(al_tensor *out, const uint8_t *value) {
  al_fill(out->data, al_numel(out), al_dtype_size((al_dtype)out->dtype), value);
}

AL_KERNEL(aten_full_out, "aten::full.out") {
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  uint8_t value[8];
  AL_TRY(resize_to_list(call, out));
  AL_TRY(al_scalar_element(call, 1, out->dtype, value));
  fill(out, value);
  return AL_OK;
}

AL_KERNEL(aten_full_like_out, "aten::full_like.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  uint8_t value[8];
  AL_TRY(al_resize_like(call, out, self));
  AL_TRY(al_scalar_element(call, 1, out->dtype, value));
  fill(out, value);
  return AL_OK;
}

AL_KERNEL(aten_zeros_out, "aten::zeros.out") {
  al_tensor *out = al_out_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(resize_to_list(call, out));
  static const uint8_t zero[8] = {0};
  fill(out, zero);
  return AL_OK;
}

AL_KERNEL(aten_ones_out, "aten::ones.out") {
  al_tensor *out = al_out_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(resize_to_list(call, out));
  if (out->dtype == AL_C64) return al_fail(call, AL_DTYPE, 1);
  uint8_t dtype = out->dtype, value[8];
  uint64_t one = dtype == AL_F64 ? 0x3ff0000000000000u : dtype == AL_F32 ? 0x3f800000u : dtype == AL_F16 ? 0x3c00u
               : dtype == AL_BF16 ? 0x3f80u : 1u;
  memcpy(value, &one, sizeof value); /* little-endian: the first bytes are the number */
  fill(out, value);
  return AL_OK;
}

AL_KERNEL(aten_scalar_tensor_out, "aten::scalar_tensor.out") {
  al_tensor *out = al_out_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  uint8_t value[8];
  AL_TRY(al_resize(call, out, 0, NULL));
  AL_TRY(al_scalar_element(call, 0, out->dtype, value));
  fill(out, value);
  return AL_OK;
}

/* Of any content: memory stays as it is. */
AL_KERNEL(aten_empty_out, "aten::empty.out") {
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  return resize_to_list(call, out);
}

/* ------------------------------------------------------------ arange */

/* Number of steps from start until before end; -1 if there can be none. */
static double float_steps(double start, double end, double step) {
  if (!isfinite(start) || !isfinite(end) || !(step > 0 || step < 0)) return -1;
  if (step > 0 ? end < start : end > start) return -1;
  return ceil((end - start) / step);
}

/* A Scalar argument, and as an integer; false if a float is too large for one. */
static bool number(al_call *call, int32_t i, double otherwise, double *value, int64_t *integer) {
  *value = i < 0 ? otherwise : al_scalar_arg(call, (uint32_t)i);
  *integer = (int64_t)otherwise;
  if (i < 0 || call->status) return true;
  if (!(fabs(*value) < 0x1p62)) return false;
  *integer = al_int_scalar_arg(call, (uint32_t)i);
  return true;
}

/* As in torch, integer results step in integers, but only int64 also counts its elements so. An argument of -1 is not
 * given. */
static al_status arange(al_call *call, int32_t start_arg, int32_t end_arg, int32_t step_arg, uint32_t out_arg) {
  double start, end, step;
  int64_t first, last, stride;
  al_tensor *out = al_out_arg(call, out_arg);
  bool small = number(call, start_arg, 0, &start, &first) & number(call, end_arg, 0, &end, &last);
  small &= number(call, step_arg, 1, &step, &stride);
  AL_RETURN_IF_FAILED(call);
  bool is_float = out->dtype == AL_F32 || out->dtype == AL_F64;
  bool is_int = !is_float && al_computes(out->dtype) && out->dtype != AL_BOOL;
  if (!is_float && !is_int) return al_fail(call, AL_DTYPE, (int32_t)out_arg);
  double count = float_steps(start, end, step);
  if (count < 0 || (is_int && !small) || (out->dtype == AL_I64 && !stride)) return al_fail(call, AL_VALUE, end_arg);
  if (out->dtype == AL_I64) {
    int64_t round_up = stride > 0 ? stride - 1 : stride + 1;
    count = (double)((last - first + round_up) / stride);
  }
  if (count > INT32_MAX) return al_fail(call, AL_SHAPE, end_arg);
  int32_t size = (int32_t)count;
  AL_TRY(al_resize(call, out, 1, &size));
  for (uint32_t k = 0; k < (uint32_t)size; k++) {
    double value = start + step * k;
    if (out->dtype == AL_F64) memcpy((uint8_t *)out->data + 8 * (size_t)k, &value, sizeof value);
    else if (is_float) al_store_float(out->data, k, AL_F32, (float)value);
    else al_store_int(out->data, k, out->dtype, (int64_t)((uint64_t)first + (uint64_t)stride * k));
  }
  return AL_OK;
}

AL_KERNEL(aten_arange_out, "aten::arange.out") {
  return arange(call, -1, 0, -1, 1);
}

AL_KERNEL(aten_arange_start_out, "aten::arange.start_out") {
  return arange(call, 0, 1, 2, 3);
}
