/* Comparisons and logic: results are bool. */
#include "elementwise.h"

static float eq_f(const float *v) { return v[0] == v[1] ? 1.0f : 0.0f; }
static float ne_f(const float *v) { return v[0] != v[1] ? 1.0f : 0.0f; }
static float lt_f(const float *v) { return v[0] < v[1] ? 1.0f : 0.0f; }
static float le_f(const float *v) { return v[0] <= v[1] ? 1.0f : 0.0f; }
static float gt_f(const float *v) { return v[0] > v[1] ? 1.0f : 0.0f; }
static float ge_f(const float *v) { return v[0] >= v[1] ? 1.0f : 0.0f; }
static int64_t eq_i(int64_t *v) { return v[0] == v[1]; }
static int64_t ne_i(int64_t *v) { return v[0] != v[1]; }
static int64_t lt_i(int64_t *v) { return v[0] < v[1]; }
static int64_t le_i(int64_t *v) { return v[0] <= v[1]; }
static int64_t gt_i(int64_t *v) { return v[0] > v[1]; }
static int64_t ge_i(int64_t *v) { return v[0] >= v[1]; }

AL_KERNEL(aten_eq_Tensor_out, "aten::eq.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, eq_f, eq_i); }
AL_KERNEL(aten_eq_Scalar_out, "aten::eq.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, eq_f, eq_i); }
AL_KERNEL(aten_ne_Tensor_out, "aten::ne.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, ne_f, ne_i); }
AL_KERNEL(aten_ne_Scalar_out, "aten::ne.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, ne_f, ne_i); }
AL_KERNEL(aten_lt_Tensor_out, "aten::lt.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, lt_f, lt_i); }
AL_KERNEL(aten_lt_Scalar_out, "aten::lt.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, lt_f, lt_i); }
AL_KERNEL(aten_le_Tensor_out, "aten::le.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, le_f, le_i); }
AL_KERNEL(aten_le_Scalar_out, "aten::le.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, le_f, le_i); }
AL_KERNEL(aten_gt_Tensor_out, "aten::gt.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, gt_f, gt_i); }
AL_KERNEL(aten_gt_Scalar_out, "aten::gt.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, gt_f, gt_i); }
AL_KERNEL(aten_ge_Tensor_out, "aten::ge.Tensor_out") { return al_binary(call, AL_GIVES_BOOL, ge_f, ge_i); }
AL_KERNEL(aten_ge_Scalar_out, "aten::ge.Scalar_out") { return al_binary(call, AL_GIVES_BOOL, ge_f, ge_i); }

static float and_f(const float *v) { return v[0] != 0 && v[1] != 0 ? 1.0f : 0.0f; }
static float or_f(const float *v) { return v[0] != 0 || v[1] != 0 ? 1.0f : 0.0f; }
static float xor_f(const float *v) { return (v[0] != 0) != (v[1] != 0) ? 1.0f : 0.0f; }
static float not_f(const float *v) { return v[0] == 0 ? 1.0f : 0.0f; }
static int64_t and_i(int64_t *v) { return v[0] && v[1]; }
static int64_t or_i(int64_t *v) { return v[0] || v[1]; }
static int64_t xor_i(int64_t *v) { return !v[0] != !v[1]; }
static int64_t not_i(int64_t *v) { return !v[0]; }

AL_KERNEL(aten_logical_and_out, "aten::logical_and.out") { return al_binary(call, AL_GIVES_BOOL, and_f, and_i); }
AL_KERNEL(aten_logical_or_out, "aten::logical_or.out") { return al_binary(call, AL_GIVES_BOOL, or_f, or_i); }
AL_KERNEL(aten_logical_xor_out, "aten::logical_xor.out") { return al_binary(call, AL_GIVES_BOOL, xor_f, xor_i); }
AL_KERNEL(aten_logical_not_out, "aten::logical_not.out") { return al_unary(call, AL_GIVES_BOOL, not_f, not_i); }
