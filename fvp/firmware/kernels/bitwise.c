/* Operations on bits, of integers and bool. */
#include "elementwise.h"

static int64_t and_i(int64_t *v) { return v[0] & v[1]; }
static int64_t or_i(int64_t *v) { return v[0] | v[1]; }
static int64_t xor_i(int64_t *v) { return v[0] ^ v[1]; }
static int64_t not_i(int64_t *v) { return ~v[0]; }
static int64_t not_b(int64_t *v) { return !v[0]; }

/* Elements are extended to 64 bits, so that distances between their width and 64 need no care. */
static int64_t left_i(int64_t *v) { return v[1] < 0 || v[1] > 63 ? 0 : (int64_t)((uint64_t)v[0] << v[1]); }
static int64_t right_i(int64_t *v) { return v[0] >> (v[1] < 0 || v[1] > 63 ? 63 : v[1]); }

AL_KERNEL(aten_bitwise_and_Tensor_out, "aten::bitwise_and.Tensor_out") { return al_binary(call, 0, NULL, and_i); }
AL_KERNEL(aten_bitwise_and_Scalar_out, "aten::bitwise_and.Scalar_out") { return al_binary(call, 0, NULL, and_i); }
AL_KERNEL(aten_bitwise_or_Tensor_out, "aten::bitwise_or.Tensor_out") { return al_binary(call, 0, NULL, or_i); }
AL_KERNEL(aten_bitwise_or_Scalar_out, "aten::bitwise_or.Scalar_out") { return al_binary(call, 0, NULL, or_i); }
AL_KERNEL(aten_bitwise_xor_Tensor_out, "aten::bitwise_xor.Tensor_out") { return al_binary(call, 0, NULL, xor_i); }
AL_KERNEL(aten_bitwise_xor_Scalar_out, "aten::bitwise_xor.Scalar_out") { return al_binary(call, 0, NULL, xor_i); }

AL_KERNEL(aten_bitwise_not_out, "aten::bitwise_not.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  return al_unary(call, 0, NULL, x && x->dtype == AL_BOOL ? not_b : not_i);
}

AL_KERNEL(aten_bitwise_left_shift_Tensor_out, "aten::bitwise_left_shift.Tensor_out") {
  return al_binary(call, AL_NO_BOOL, NULL, left_i);
}
AL_KERNEL(aten_bitwise_left_shift_Tensor_Scalar_out, "aten::bitwise_left_shift.Tensor_Scalar_out") {
  return al_binary(call, AL_NO_BOOL, NULL, left_i);
}
AL_KERNEL(aten_bitwise_right_shift_Tensor_out, "aten::bitwise_right_shift.Tensor_out") {
  return al_binary(call, AL_NO_BOOL, NULL, right_i);
}
AL_KERNEL(aten_bitwise_right_shift_Tensor_Scalar_out, "aten::bitwise_right_shift.Tensor_Scalar_out") {
  return al_binary(call, AL_NO_BOOL, NULL, right_i);
}
