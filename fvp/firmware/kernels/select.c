/* Elements chosen by a mask, and numbers written everywhere. */
#include "elementwise.h"

static float where_f(const float *v) { return v[0] != 0 ? v[1] : v[2]; }
static int64_t where_i(int64_t *v) { return v[0] ? v[1] : v[2]; }

AL_KERNEL(aten_where_self_out, "aten::where.self_out") {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_MASK);
  al_take(&e, 1, AL_PROMOTES);
  al_take(&e, 2, AL_PROMOTES);
  return al_compute(&e, 3, 0, where_f, where_i);
}

static float masked_f(const float *v) { return v[1] != 0 ? v[2] : v[0]; }
static int64_t masked_i(int64_t *v) { return v[1] ? v[2] : v[0]; }

AL_KERNEL(aten_masked_fill_Scalar_out, "aten::masked_fill.Scalar_out") {
  const al_tensor *mask = al_tensor_arg(call, 1);
  if (mask && mask->dtype != AL_BOOL) return al_fail(call, AL_DTYPE, 1);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_MASK);
  al_take(&e, 2, AL_PARAMETER);
  return al_compute(&e, 3, 0, masked_f, masked_i);
}

static float second_f(const float *v) { return v[1]; }
static int64_t second_i(int64_t *v) { return v[1]; }

AL_KERNEL(aten_fill_Scalar_out, "aten::fill.Scalar_out") {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PARAMETER);
  return al_compute(&e, 2, 0, second_f, second_i);
}

AL_KERNEL(aten_fill_Tensor_out, "aten::fill.Tensor_out") {
  const al_tensor *self = al_tensor_arg(call, 0), *value = al_tensor_arg(call, 1);
  al_tensor *out = al_out_of(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (value->rank != 0) return al_fail(call, AL_SHAPE, 1);
  if (out->dtype != self->dtype) return al_fail(call, AL_DTYPE, 2);
  AL_TRY(al_resize_like(call, out, self));
  return al_copy_elements(call, out, value, 1);
}
