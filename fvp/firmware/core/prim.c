/* Operators of ExecuTorch's symbolic numbers (executorch_prim) and those that make numbers of tensors.
 *
 * Arguments are Int, Double or Bool; a Bool counts as an Int, an Int beside a Double as a Double. Integers wrap
 * around; results are Python's, so that floor division and remainder round down.
 */
#include <math.h>

#include "core.h"

typedef enum operation { ADD, SUB, MUL, FLOORDIV, MOD, MAX, MIN, EQ, GT, GE, LT, LE } operation;

static bool is_double(al_call *call, uint32_t i) {
  const al_value *v = al_arg(call, i);
  return v && v->type == AL_DOUBLE;
}

static al_status of_doubles(al_call *call, operation op, double a, double b) {
  switch (op) {
    case ADD: return al_set_double(call, 2, a + b);
    case SUB: return al_set_double(call, 2, a - b);
    case MUL: return al_set_double(call, 2, a * b);
    case MAX: return al_set_double(call, 2, b > a ? b : a);
    case MIN: return al_set_double(call, 2, b < a ? b : a);
    case EQ: return al_set_bool(call, 2, a == b);
    case GT: return al_set_bool(call, 2, a > b);
    case GE: return al_set_bool(call, 2, a >= b);
    case LT: return al_set_bool(call, 2, a < b);
    case LE: return al_set_bool(call, 2, a <= b);
    default: break;
  }
  if (b == 0) return al_fail(call, AL_VALUE, 1);
  double remainder = fmod(a, b), quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = copysign(0, b);
  } else if ((remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (op == MOD) return al_set_double(call, 2, remainder);
  double down = floor(quotient); /* the quotient is whole but for rounding */
  return al_set_double(call, 2, quotient == 0 ? copysign(0, a / b) : quotient - down > 0.5 ? down + 1 : down);
}

static al_status of_ints(al_call *call, operation op, int64_t a, int64_t b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (op) {
    case ADD: return al_set_int(call, 2, (int64_t)(x + y));
    case SUB: return al_set_int(call, 2, (int64_t)(x - y));
    case MUL: return al_set_int(call, 2, (int64_t)(x * y));
    case MAX: return al_set_int(call, 2, b > a ? b : a);
    case MIN: return al_set_int(call, 2, b < a ? b : a);
    case EQ: return al_set_bool(call, 2, a == b);
    case GT: return al_set_bool(call, 2, a > b);
    case GE: return al_set_bool(call, 2, a >= b);
    case LT: return al_set_bool(call, 2, a < b);
    case LE: return al_set_bool(call, 2, a <= b);
    default: break;
  }
  if (b == 0) return al_fail(call, AL_VALUE, 1);
  if (b == -1) return al_set_int(call, 2, op == MOD ? 0 : (int64_t)(0 - x)); /* the quotient may overflow */
  int64_t quotient = a / b, remainder = a % b;
  if (remainder && (remainder < 0) != (b < 0)) {
    quotient--;
    remainder += b;
  }
  return al_set_int(call, 2, op == MOD ? remainder : quotient);
}

static al_status binary(al_call *call, operation op) {
  bool doubles = is_double(call, 0) || is_double(call, 1);
  double a = al_scalar_arg(call, 0), b = al_scalar_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  if (doubles) return of_doubles(call, op, a, b);
  return of_ints(call, op, al_int_scalar_arg(call, 0), al_int_scalar_arg(call, 1));
}

AL_KERNEL(executorch_prim_add_Scalar, "executorch_prim::add.Scalar") { return binary(call, ADD); }
AL_KERNEL(executorch_prim_sub_Scalar, "executorch_prim::sub.Scalar") { return binary(call, SUB); }
AL_KERNEL(executorch_prim_mul_Scalar, "executorch_prim::mul.Scalar") { return binary(call, MUL); }
AL_KERNEL(executorch_prim_floordiv_Scalar, "executorch_prim::floordiv.Scalar") { return binary(call, FLOORDIV); }
AL_KERNEL(executorch_prim_floordiv_int, "executorch_prim::floordiv.int") { return binary(call, FLOORDIV); }
AL_KERNEL(executorch_prim_mod_Scalar, "executorch_prim::mod.Scalar") { return binary(call, MOD); }
AL_KERNEL(executorch_prim_mod_int, "executorch_prim::mod.int") { return binary(call, MOD); }
AL_KERNEL(executorch_prim_sym_max_Scalar, "executorch_prim::sym_max.Scalar") { return binary(call, MAX); }
AL_KERNEL(executorch_prim_sym_min_Scalar, "executorch_prim::sym_min.Scalar") { return binary(call, MIN); }
AL_KERNEL(executorch_prim_eq_Scalar, "executorch_prim::eq.Scalar") { return binary(call, EQ); }
AL_KERNEL(executorch_prim_gt_Scalar, "executorch_prim::gt.Scalar") { return binary(call, GT); }
AL_KERNEL(executorch_prim_ge_Scalar, "executorch_prim::ge.Scalar") { return binary(call, GE); }
AL_KERNEL(executorch_prim_lt_Scalar, "executorch_prim::lt.Scalar") { return binary(call, LT); }
AL_KERNEL(executorch_prim_le_Scalar, "executorch_prim::le.Scalar") { return binary(call, LE); }

AL_KERNEL(executorch_prim_truediv_Scalar, "executorch_prim::truediv.Scalar") {
  double a = al_scalar_arg(call, 0), b = al_scalar_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  return b == 0 ? al_fail(call, AL_VALUE, 1) : al_set_double(call, 2, a / b);
}

AL_KERNEL(executorch_prim_neg_Scalar, "executorch_prim::neg.Scalar") {
  if (is_double(call, 0)) return al_set_double(call, 1, -al_scalar_arg(call, 0));
  int64_t a = al_int_scalar_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return al_set_int(call, 1, (int64_t)(0 - (uint64_t)a));
}

/* A number rounded to an Int. What int64 does not hold is an error. */
static al_status rounded(al_call *call, double (*round_off)(double)) {
  if (is_double(call, 0)) {
    double a = round_off(al_scalar_arg(call, 0));
    return a >= -0x1p63 && a < 0x1p63 ? al_set_int(call, 1, (int64_t)a) : al_fail(call, AL_VALUE, 0);
  }
  int64_t a = al_int_scalar_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return al_set_int(call, 1, a);
}

AL_KERNEL(executorch_prim_ceil_Scalar, "executorch_prim::ceil.Scalar") { return rounded(call, ceil); }
AL_KERNEL(executorch_prim_round_Scalar, "executorch_prim::round.Scalar") { return rounded(call, rint); }
AL_KERNEL(executorch_prim_trunc_Scalar, "executorch_prim::trunc.Scalar") { return rounded(call, trunc); }
AL_KERNEL(executorch_prim_sym_int_Scalar, "executorch_prim::sym_int.Scalar") { return rounded(call, trunc); }

AL_KERNEL(executorch_prim_sym_float_Scalar, "executorch_prim::sym_float.Scalar") {
  double a = al_scalar_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return al_set_double(call, 1, a);
}

AL_KERNEL(executorch_prim_sym_not_Scalar, "executorch_prim::sym_not.Scalar") {
  double a = al_scalar_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return al_set_bool(call, 1, a == 0);
}

AL_KERNEL(executorch_prim_sym_ite_Scalar, "executorch_prim::sym_ite.Scalar") {
  bool holds = al_scalar_arg(call, 0) != 0;
  AL_RETURN_IF_FAILED(call);
  uint32_t chosen = holds ? 1 : 2;
  const al_value *v = al_arg(call, chosen);
  AL_RETURN_IF_FAILED(call);
  if (v->type == AL_BOOLEAN) return al_set_bool(call, 3, v->b);
  if (v->type == AL_DOUBLE) return al_set_double(call, 3, v->d);
  int64_t a = al_int_scalar_arg(call, chosen);
  AL_RETURN_IF_FAILED(call);
  return al_set_int(call, 3, a);
}

AL_KERNEL(aten_sym_size_int, "aten::sym_size.int") {
  const al_tensor *x = al_tensor_arg(call, 0);
  int64_t dim = al_int_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  int32_t d = al_wrap_dim(dim, x->rank);
  if (d < 0 || x->rank == 0) return al_fail(call, AL_INDEX, 1);
  return al_set_int(call, 2, x->sizes[d]);
}

AL_KERNEL(aten_sym_numel, "aten::sym_numel") {
  const al_tensor *x = al_tensor_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return al_set_int(call, 1, (int64_t)al_numel(x));
}

AL_KERNEL(aten__local_scalar_dense, "aten::_local_scalar_dense") {
  const al_tensor *x = al_tensor_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  if (al_numel(x) != 1) return al_fail(call, AL_SHAPE, 0);
  if (x->dtype == AL_BOOL) return al_set_bool(call, 1, al_load_int(x->data, 0, AL_BOOL) != 0);
  if (x->dtype == AL_F64) return al_set_double(call, 1, *(const double *)x->data);
  if (x->dtype == AL_F32) return al_set_double(call, 1, (double)al_load_float(x->data, 0, AL_F32));
  if (!al_computes(x->dtype)) return al_fail(call, AL_DTYPE, 0);
  return al_set_int(call, 1, al_load_int(x->data, 0, x->dtype));
}

/* [self, sizes, out]: no data moves, out becomes another view of self's memory. */
AL_KERNEL(executorch_prim_et_view_default, "executorch_prim::et_view.default") {
  const al_tensor *x = al_tensor_arg(call, 0);
  const al_value *v = al_arg(call, 2);
  uint32_t rank = al_list_size(call, 1);
  int32_t sizes[AL_MAX_RANK], free_dim = -1;
  AL_RETURN_IF_FAILED(call);
  if (v->type != AL_TENSOR) return al_fail(call, AL_ARGUMENTS, 2);
  al_tensor *out = v->t;
  if (out->constant && !out->view) return al_fail(call, AL_CONSTANT, 2);
  if (rank != out->rank) return al_fail(call, AL_SHAPE, 1);
  uint64_t known = 1;
  uint32_t numel = al_numel(x);
  for (uint32_t i = 0; i < rank; i++) {
    int64_t size = al_int_item(call, 1, i);
    AL_RETURN_IF_FAILED(call);
    if (size < -1 || size > INT32_MAX || (size == -1 && free_dim >= 0)) return al_fail(call, AL_VALUE, 1);
    if (size == -1) free_dim = (int32_t)i;
    sizes[i] = (int32_t)size;
    known *= size == -1 ? 1 : (uint64_t)size;
    if (known > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
  }
  if (free_dim >= 0) {
    if (known == 0 || numel % known) return al_fail(call, AL_SHAPE, 1);
    sizes[free_dim] = (int32_t)(numel / known);
    known = numel;
  }
  if (known != numel) return al_fail(call, AL_SHAPE, 1);
  if (x->dtype != out->dtype) return al_fail(call, AL_DTYPE, 2);
  al_tensor before = *out;
  out->data = x->data;
  out->capacity = x->capacity;
  al_status status = al_resize(call, out, rank, sizes);
  if (!status && !(al_is_contiguous(x) && al_is_contiguous(out)) && !al_same_layout(x, out))
    status = al_fail(call, AL_SHAPE, 0); /* the elements would come in another order */
  if (status) {
    *out = before;
    return status;
  }
  out->constant = x->constant;
  out->view = true;
  return AL_OK;
}

/* [target, source, index]: source becomes slice `index` of target; a dynamic target then ends there. */
AL_KERNEL(executorch_prim_et_copy_index_tensor, "executorch_prim::et_copy_index.tensor") {
  al_tensor *target = al_out_arg(call, 0);
  const al_tensor *source = al_tensor_arg(call, 1);
  int64_t index = al_int_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (target->dtype != source->dtype) return al_fail(call, AL_DTYPE, 1);
  if (target->rank != source->rank + 1u) return al_fail(call, AL_SHAPE, 1);
  if (index < 0 || index >= target->bounds[0]) return al_fail(call, AL_INDEX, 2);
  if (memcmp(source->sizes, target->sizes + 1, source->rank * sizeof *source->sizes) && !target->dynamic)
    return al_fail(call, AL_SHAPE, 1);
  if (target->dynamic) {
    int32_t sizes[AL_MAX_RANK] = {(int32_t)index + 1};
    memcpy(sizes + 1, source->sizes, source->rank * sizeof *source->sizes);
    AL_TRY(al_resize(call, target, target->rank, sizes));
  }
  if (!al_is_contiguous(target) || !al_is_contiguous(source)) return al_fail(call, AL_SHAPE, 0);
  uint32_t bytes = al_nbytes(source);
  memmove((uint8_t *)target->data + (uint32_t)index * bytes, source->data, bytes);
  return AL_OK;
}
