/* Activation functions that are not plain functions of one number. float32 only, as in torch. */
#include <math.h>
#include <string.h>

#include "elementwise.h"
#include "functions.h"

static float elu_f(const float *v) { /* x, alpha, scale, input_scale */
  float x = v[0];
  return x < 0 ? al_expm1(x * v[3]) * (v[1] * v[2]) : x * v[2];
}

AL_KERNEL(aten_elu_out, "aten::elu.out") {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  for (uint32_t i = 1; i < 4; i++) al_take(&e, i, AL_PARAMETER);
  return al_compute(&e, 4, AL_FLOAT_ONLY, elu_f, NULL);
}

static float leaky_relu_f(const float *v) { return v[0] > 0 ? v[0] : v[0] * v[1]; }

AL_KERNEL(aten_leaky_relu_out, "aten::leaky_relu.out") {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PARAMETER);
  return al_compute(&e, 2, AL_FLOAT_ONLY, leaky_relu_f, NULL);
}

static float gelu_f(const float *v) { return v[0] * 0.5f * (1 + al_erf(v[0] * 0.70710678118654752f)); }

static float gelu_tanh_f(const float *v) {
  float x = v[0];
  return 0.5f * x * (1 + al_tanh(0.79788456080286536f * (x + 0.044715f * x * x * x))); /* sqrt(2 / pi) */
}

AL_KERNEL(aten_gelu_out, "aten::gelu.out") {
  bool is_tanh = al_string_is(call, 1, "tanh");
  if (!is_tanh && !al_string_is(call, 1, "none")) return al_fail(call, AL_VALUE, 1);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  return al_compute(&e, 2, AL_FLOAT_ONLY, is_tanh ? gelu_tanh_f : gelu_f, NULL);
}

AL_KERNEL(aten_glu_out, "aten::glu.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  int64_t dim = al_int_arg(call, 1);
  al_tensor *out = al_out_of(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (x->dtype != AL_F32) return al_fail(call, AL_DTYPE, 0);
  if (out->dtype != AL_F32) return al_fail(call, AL_DTYPE, 2);
  int32_t d = al_wrap_dim(dim, x->rank);
  if (d < 0) return al_fail(call, AL_INDEX, 1);
  if (x->rank == 0 || x->sizes[d] % 2 != 0) return al_fail(call, AL_SHAPE, 0);

  int32_t sizes[AL_MAX_RANK], strides[AL_MAX_RANK];
  memcpy(sizes, x->sizes, x->rank * sizeof *sizes);
  sizes[d] /= 2;
  AL_TRY(al_resize(call, out, x->rank, sizes));
  if (al_numel(out) == 0) return AL_OK;
  if (al_clashes(out, x)) return al_fail(call, AL_ARGUMENTS, 0);
  al_strides(x, strides);
  uint32_t half = (uint32_t)(sizes[d] * strides[d]);
  const float *in = x->data;
  float *result = out->data;
  al_runs w;
  al_runs_begin(&w, 2, (const al_tensor *const[]){out, x});
  do {
    for (uint32_t n = 0; n < w.run; n++) {
      uint32_t at = w.offset[1] + n * w.step[1][0];
      result[w.offset[0] + n * w.step[0][0]] = in[at] / (1 + expf(-in[at + half]));
    }
  } while (al_runs_next(&w));
  return AL_OK;
}

/* At inference, or with a probability of 0: everything stays. */
AL_KERNEL(aten_native_dropout_out, "aten::native_dropout.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  double p = al_double_arg(call, 1);
  bool trains = al_arg_is_null(call, 2) || al_bool_arg(call, 2);
  al_tensor *out = al_out_arg(call, 3), *mask = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  if (trains && p != 0) return al_fail(call, AL_VALUE, 2);
  if (out->dtype != x->dtype) return al_fail(call, AL_DTYPE, 3);
  if (mask->dtype != AL_BOOL) return al_fail(call, AL_DTYPE, 4);
  AL_TRY(al_resize_like(call, out, x));
  AL_TRY(al_resize_like(call, mask, x));
  AL_TRY(al_copy_elements(call, out, x, 0));
  memset(mask->data, 1, al_nbytes(mask));
  return AL_OK;
}
