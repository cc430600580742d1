/* Arithmetic of two operands. Integer overflow wraps around, as in torch. */
#include <math.h>

#include "elementwise.h"
#include "functions.h"

/* ------------------------------------------------------------ sums and products */

static int64_t scaled(int64_t x, int64_t alpha) { return (int64_t)((uint64_t)x * (uint64_t)alpha); }
static int64_t sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t difference(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

static float add_f(const float *v) { return v[0] + v[2] * v[1]; }
static float sub_f(const float *v) { return v[0] - v[2] * v[1]; }
static float rsub_f(const float *v) { return v[1] - v[2] * v[0]; }
static float mul_f(const float *v) { return v[0] * v[1]; }
static int64_t add_i(int64_t *v) { return sum(v[0], scaled(v[1], v[2])); }
static int64_t sub_i(int64_t *v) { return difference(v[0], scaled(v[1], v[2])); }
static int64_t rsub_i(int64_t *v) { return difference(v[1], scaled(v[0], v[2])); }
static int64_t mul_i(int64_t *v) { return scaled(v[0], v[1]); }

/* (self, other, alpha, out) */
static al_status with_alpha(al_call *call, uint32_t rules, al_float_fn *f, al_int_fn *i) {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PROMOTES);
  al_take(&e, 2, AL_ALPHA);
  return al_compute(&e, 3, rules, f, i);
}

AL_KERNEL(aten_add_out, "aten::add.out") { return with_alpha(call, 0, add_f, add_i); }
AL_KERNEL(aten_add_Scalar_out, "aten::add.Scalar_out") { return with_alpha(call, 0, add_f, add_i); }
AL_KERNEL(aten_sub_out, "aten::sub.out") { return with_alpha(call, AL_NO_BOOL_INPUT, sub_f, sub_i); }
AL_KERNEL(aten_sub_Scalar_out, "aten::sub.Scalar_out") { return with_alpha(call, AL_NO_BOOL_INPUT, sub_f, sub_i); }
AL_KERNEL(aten_rsub_Scalar_out, "aten::rsub.Scalar_out") { return with_alpha(call, AL_NO_BOOL_INPUT, rsub_f, rsub_i); }
AL_KERNEL(aten_mul_out, "aten::mul.out") { return al_binary(call, 0, mul_f, mul_i); }
AL_KERNEL(aten_mul_Scalar_out, "aten::mul.Scalar_out") { return al_binary(call, 0, mul_f, mul_i); }

/* ------------------------------------------------------------ quotients and remainders */

static float div_f(const float *v) { return v[0] / v[1]; }
static float div_trunc_f(const float *v) { return truncf(v[0] / v[1]); }

/* torch's: exact also where the rounded quotient is a whole number and the true one is not. */
static float div_floor_f(const float *v) {
  float a = v[0], b = v[1];
  if (b == 0) return a / b;
  float rest = fmodf(a, b);
  float quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return copysignf(0, a / b);
  float whole = floorf(quotient);
  return quotient - whole > 0.5f ? whole + 1 : whole;
}

static float fmod_f(const float *v) { return fmodf(v[0], v[1]); }

static float remainder_f(const float *v) {
  float rest = fmodf(v[0], v[1]);
  return rest != 0 && (v[1] < 0) != (rest < 0) ? rest + v[1] : rest;
}

/* -1 is apart since the quotient of the smallest integer overflows. */
static int64_t div_trunc_i(int64_t *v) {
  if (v[1] == 0) return AL_REFUSE(v);
  return v[1] == -1 ? difference(0, v[0]) : v[0] / v[1];
}

static int64_t fmod_i(int64_t *v) {
  if (v[1] == 0) return AL_REFUSE(v);
  return v[1] == -1 ? 0 : v[0] % v[1];
}

static int64_t remainder_i(int64_t *v) {
  int64_t rest = fmod_i(v);
  return rest != 0 && (rest < 0) != (v[1] < 0) ? rest + v[1] : rest;
}

static int64_t div_floor_i(int64_t *v) {
  int64_t quotient = div_trunc_i(v);
  int64_t rest = difference(v[0], scaled(quotient, v[1]));
  return rest != 0 && (rest < 0) != (v[1] < 0) ? quotient - 1 : quotient;
}

/* (self, other, rounding_mode, out) */
static al_status div_mode(al_call *call) {
  bool floors = al_string_is(call, 2, "floor"), truncates = al_string_is(call, 2, "trunc");
  if (!floors && !truncates && !al_arg_is_null(call, 2)) return al_fail(call, AL_VALUE, 2);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PROMOTES);
  if (floors) return al_compute(&e, 3, AL_NO_BOOL, div_floor_f, div_floor_i);
  if (truncates) return al_compute(&e, 3, AL_NO_BOOL, div_trunc_f, div_trunc_i);
  return al_compute(&e, 3, 0, div_f, NULL);
}

AL_KERNEL(aten_div_out, "aten::div.out") { return al_binary(call, 0, div_f, NULL); }
AL_KERNEL(aten_div_Scalar_out, "aten::div.Scalar_out") { return al_binary(call, 0, div_f, NULL); }
AL_KERNEL(aten_div_out_mode, "aten::div.out_mode") { return div_mode(call); }
AL_KERNEL(aten_div_Scalar_mode_out, "aten::div.Scalar_mode_out") { return div_mode(call); }
AL_KERNEL(aten_floor_divide_out, "aten::floor_divide.out") {
  return al_binary(call, AL_NO_BOOL, div_floor_f, div_floor_i);
}
AL_KERNEL(aten_fmod_Tensor_out, "aten::fmod.Tensor_out") { return al_binary(call, AL_NO_BOOL, fmod_f, fmod_i); }
AL_KERNEL(aten_fmod_Scalar_out, "aten::fmod.Scalar_out") { return al_binary(call, AL_NO_BOOL, fmod_f, fmod_i); }
AL_KERNEL(aten_remainder_Tensor_out, "aten::remainder.Tensor_out") {
  return al_binary(call, AL_NO_BOOL, remainder_f, remainder_i);
}
AL_KERNEL(aten_remainder_Scalar_out, "aten::remainder.Scalar_out") {
  return al_binary(call, AL_NO_BOOL, remainder_f, remainder_i);
}

/* ------------------------------------------------------------ powers and angles */

static float atan2_f(const float *v) { return al_atan2(v[0], v[1]); }
static float pow_f(const float *v) { return powf(v[0], v[1]); }
static float root_f(const float *v) { return sqrtf(v[0]); }
static float inverse_root_f(const float *v) { return 1.0f / sqrtf(v[0]); }

static int64_t pow_i(int64_t *v) {
  uint64_t base = (uint64_t)v[0], result = 1;
  if (v[1] < 0) return v[0] == 1 ? 1 : v[0] == -1 ? (v[1] & 1 ? -1 : 1) : 0;
  for (int64_t exponent = v[1]; exponent; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return (int64_t)result;
}

AL_KERNEL(aten_atan2_out, "aten::atan2.out") { return al_binary(call, 0, atan2_f, NULL); }
AL_KERNEL(aten_pow_Tensor_Tensor_out, "aten::pow.Tensor_Tensor_out") {
  return al_binary(call, AL_NO_BOOL, pow_f, pow_i);
}
AL_KERNEL(aten_pow_Scalar_out, "aten::pow.Scalar_out") { return al_binary(call, 0, pow_f, pow_i); }

AL_KERNEL(aten_pow_Tensor_Scalar_out, "aten::pow.Tensor_Scalar_out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  const al_value *number = al_arg(call, 1);
  double exponent = al_scalar_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  if (!al_is_float(x->dtype) && number->type == AL_INT && exponent < 0) return al_fail(call, AL_VALUE, 1);
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_LIMIT);
  /* Roots differ from powers at -0 and -inf. */
  al_float_fn *f = exponent == 0.5 ? root_f : exponent == -0.5 ? inverse_root_f : pow_f;
  return al_compute(&e, 2, 0, f, pow_i);
}
