/* Minimum, maximum and what is made of them. NaN wins, as in torch. */
#include <math.h>

#include "elementwise.h"

static float larger(float a, float b) { return isnan(a) || a > b ? a : b; }
static float smaller(float a, float b) { return isnan(a) || a < b ? a : b; }

static float max_f(const float *v) { return larger(v[0], v[1]); }
static float min_f(const float *v) { return smaller(v[0], v[1]); }
static float clamp_f(const float *v) { return smaller(larger(v[0], v[1]), v[2]); }
static float relu_f(const float *v) { return v[0] < 0 ? 0.0f : v[0]; }
static int64_t max_i(int64_t *v) { return v[0] > v[1] ? v[0] : v[1]; }
static int64_t min_i(int64_t *v) { return v[0] < v[1] ? v[0] : v[1]; }
static int64_t relu_i(int64_t *v) { return v[0] < 0 ? 0 : v[0]; }

static int64_t clamp_i(int64_t *v) {
  int64_t x = max_i(v);
  return x < v[2] ? x : v[2];
}

AL_KERNEL(aten_maximum_out, "aten::maximum.out") { return al_binary(call, 0, max_f, max_i); }
AL_KERNEL(aten_minimum_out, "aten::minimum.out") { return al_binary(call, 0, min_f, min_i); }
AL_KERNEL(aten_relu_out, "aten::relu.out") { return al_unary(call, AL_NO_BOOL, relu_f, relu_i); }

/* (self, min, max, out), one of min and max may be null. torch computes one limit that is a tensor also in bool. */
static al_status clamp(al_call *call, uint32_t one_sided_rules) {
  bool no_min = al_arg_is_null(call, 1), no_max = al_arg_is_null(call, 2);
  if (no_min && no_max) return al_fail(call, AL_VALUE, 1);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  if (!no_min) al_take(&e, 1, AL_LIMIT);
  if (!no_max) al_take(&e, 2, AL_LIMIT);
  if (no_max) return al_compute(&e, 3, one_sided_rules, max_f, max_i);
  if (no_min) return al_compute(&e, 3, one_sided_rules, min_f, min_i);
  return al_compute(&e, 3, AL_NO_BOOL, clamp_f, clamp_i);
}

AL_KERNEL(aten_clamp_out, "aten::clamp.out") { return clamp(call, AL_NO_BOOL); }
AL_KERNEL(aten_clamp_Tensor_out, "aten::clamp.Tensor_out") { return clamp(call, 0); }

AL_KERNEL(aten_hardtanh_out, "aten::hardtanh.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  bool negative = al_scalar_arg(call, 1) < 0 || al_scalar_arg(call, 2) < 0;
  if (x && x->dtype == AL_U8 && negative) return al_fail(call, AL_VALUE, 1);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PARAMETER);
  al_take(&e, 2, AL_PARAMETER);
  return al_compute(&e, 3, AL_NO_BOOL, clamp_f, clamp_i);
}
