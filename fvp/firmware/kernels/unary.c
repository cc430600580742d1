/* Functions of one tensor. Integers become float where torch makes them so. */
#include <math.h>

#include "elementwise.h"
#include "functions.h"

static int64_t same_i(int64_t *v) { return v[0]; }
static int64_t no_i(int64_t *v) { return (void)v, 0; }

static int64_t abs_i(int64_t *v) { return v[0] < 0 ? (int64_t)(0 - (uint64_t)v[0]) : v[0]; }
static int64_t neg_i(int64_t *v) { return (int64_t)(0 - (uint64_t)v[0]); }
static int64_t sign_i(int64_t *v) { return (v[0] > 0) - (v[0] < 0); }

static float abs_f(const float *v) { return fabsf(v[0]); }
static float acos_f(const float *v) { return al_acos(v[0]); }
static float acosh_f(const float *v) { return al_acosh(v[0]); }
static float asin_f(const float *v) { return al_asin(v[0]); }
static float asinh_f(const float *v) { return al_asinh(v[0]); }
static float atan_f(const float *v) { return al_atan(v[0]); }
static float atanh_f(const float *v) { return al_atanh(v[0]); }
static float ceil_f(const float *v) { return ceilf(v[0]); }
static float cos_f(const float *v) { return cosf(v[0]); }
static float cosh_f(const float *v) { return al_cosh(v[0]); }
static float erf_f(const float *v) { return al_erf(v[0]); }
static float exp_f(const float *v) { return expf(v[0]); }
static float expm1_f(const float *v) { return al_expm1(v[0]); }
static float floor_f(const float *v) { return floorf(v[0]); }
static float isinf_f(const float *v) { return isinf(v[0]) ? 1.0f : 0.0f; }
static float isnan_f(const float *v) { return isnan(v[0]) ? 1.0f : 0.0f; }
static float log_f(const float *v) { return logf(v[0]); }
static float log10_f(const float *v) { return log10f(v[0]); }
static float log1p_f(const float *v) { return al_log1p(v[0]); }
static float log2_f(const float *v) { return log2f(v[0]); }
static float neg_f(const float *v) { return -v[0]; }
static float reciprocal_f(const float *v) { return 1.0f / v[0]; }
static float round_f(const float *v) { return rintf(v[0]); } /* to even */
static float rsqrt_f(const float *v) { return 1.0f / sqrtf(v[0]); }
static float sigmoid_f(const float *v) { return 1.0f / (1.0f + expf(-v[0])); }
static float sign_f(const float *v) { return (float)((v[0] > 0) - (v[0] < 0)); }
static float sin_f(const float *v) { return sinf(v[0]); }
static float sinh_f(const float *v) { return al_sinh(v[0]); }
static float sqrt_f(const float *v) { return sqrtf(v[0]); }
static float tan_f(const float *v) { return al_tan(v[0]); }
static float tanh_f(const float *v) { return al_tanh(v[0]); }
static float trunc_f(const float *v) { return truncf(v[0]); }

AL_KERNEL(aten_abs_out, "aten::abs.out") { return al_unary(call, AL_NO_BOOL, abs_f, abs_i); }
AL_KERNEL(aten_acos_out, "aten::acos.out") { return al_unary(call, 0, acos_f, NULL); }
AL_KERNEL(aten_acosh_out, "aten::acosh.out") { return al_unary(call, 0, acosh_f, NULL); }
AL_KERNEL(aten_asin_out, "aten::asin.out") { return al_unary(call, 0, asin_f, NULL); }
AL_KERNEL(aten_asinh_out, "aten::asinh.out") { return al_unary(call, 0, asinh_f, NULL); }
AL_KERNEL(aten_atan_out, "aten::atan.out") { return al_unary(call, 0, atan_f, NULL); }
AL_KERNEL(aten_atanh_out, "aten::atanh.out") { return al_unary(call, 0, atanh_f, NULL); }
AL_KERNEL(aten_ceil_out, "aten::ceil.out") { return al_unary(call, AL_NO_BOOL, ceil_f, same_i); }
AL_KERNEL(aten_cos_out, "aten::cos.out") { return al_unary(call, 0, cos_f, NULL); }
AL_KERNEL(aten_cosh_out, "aten::cosh.out") { return al_unary(call, 0, cosh_f, NULL); }
AL_KERNEL(aten_erf_out, "aten::erf.out") { return al_unary(call, 0, erf_f, NULL); }
AL_KERNEL(aten_exp_out, "aten::exp.out") { return al_unary(call, 0, exp_f, NULL); }
AL_KERNEL(aten_expm1_out, "aten::expm1.out") { return al_unary(call, 0, expm1_f, NULL); }
AL_KERNEL(aten_floor_out, "aten::floor.out") { return al_unary(call, AL_NO_BOOL, floor_f, same_i); }
AL_KERNEL(aten_isinf_out, "aten::isinf.out") { return al_unary(call, AL_GIVES_BOOL, isinf_f, no_i); }
AL_KERNEL(aten_isnan_out, "aten::isnan.out") { return al_unary(call, AL_GIVES_BOOL, isnan_f, no_i); }
AL_KERNEL(aten_log_out, "aten::log.out") { return al_unary(call, 0, log_f, NULL); }
AL_KERNEL(aten_log10_out, "aten::log10.out") { return al_unary(call, 0, log10_f, NULL); }
AL_KERNEL(aten_log1p_out, "aten::log1p.out") { return al_unary(call, 0, log1p_f, NULL); }
AL_KERNEL(aten_log2_out, "aten::log2.out") { return al_unary(call, 0, log2_f, NULL); }
AL_KERNEL(aten_neg_out, "aten::neg.out") { return al_unary(call, AL_NO_BOOL, neg_f, neg_i); }
AL_KERNEL(aten_reciprocal_out, "aten::reciprocal.out") { return al_unary(call, 0, reciprocal_f, NULL); }
AL_KERNEL(aten_round_out, "aten::round.out") { return al_unary(call, AL_NO_BOOL, round_f, same_i); }
AL_KERNEL(aten_rsqrt_out, "aten::rsqrt.out") { return al_unary(call, 0, rsqrt_f, NULL); }
AL_KERNEL(aten_sigmoid_out, "aten::sigmoid.out") { return al_unary(call, 0, sigmoid_f, NULL); }
AL_KERNEL(aten_sign_out, "aten::sign.out") { return al_unary(call, 0, sign_f, sign_i); }
AL_KERNEL(aten_sin_out, "aten::sin.out") { return al_unary(call, 0, sin_f, NULL); }
AL_KERNEL(aten_sinh_out, "aten::sinh.out") { return al_unary(call, 0, sinh_f, NULL); }
AL_KERNEL(aten_sqrt_out, "aten::sqrt.out") { return al_unary(call, 0, sqrt_f, NULL); }
AL_KERNEL(aten_tan_out, "aten::tan.out") { return al_unary(call, 0, tan_f, NULL); }
AL_KERNEL(aten_tanh_out, "aten::tanh.out") { return al_unary(call, 0, tanh_f, NULL); }
AL_KERNEL(aten_trunc_out, "aten::trunc.out") { return al_unary(call, AL_NO_BOOL, trunc_f, same_i); }

static float logit_f(const float *v) {
  float x = v[0];
  if (v[1] >= 0) x = x < v[1] ? v[1] : x > 1 - v[1] ? 1 - v[1] : x;
  return logf(x / (1 - x));
}

AL_KERNEL(aten_logit_out, "aten::logit.out") {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take_number(&e, al_arg_is_null(call, 1) ? -1.0 : al_double_arg(call, 1));
  return al_compute(&e, 2, 0, logit_f, NULL);
}
