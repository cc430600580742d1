/* Copies: between layouts and data types. float64, float16 and bfloat16 are copied but not converted. */
#include <string.h>

#include "elementwise.h"
#include "move.h"

static void convert_run(al_runs *w, al_tensor *to, const al_tensor *from, bool as_float) {
  uint32_t a = w->offset[0], b = w->offset[1];
  for (uint32_t n = w->run; n > 0; n--, a += w->step[0][0], b += w->step[1][0]) {
    if (as_float) al_store_float(to->data, a, to->dtype, al_load_float(from->data, b, from->dtype));
    else al_store_int(to->data, a, to->dtype, al_load_int(from->data, b, from->dtype));
  }
}

static void copy_broadcast(al_tensor *out, const al_tensor *src) {
  al_view to, from;
  al_view_of(&to, out);
  al_view_of(&from, src);
  for (uint32_t d = 0; d < from.rank; d++) {
    if (from.sizes[d] == 1) from.strides[d] = 0;
  }
  while (from.rank < to.rank) al_view_insert(&from, 0, 1, 0);
  for (uint32_t d = 0; d < to.rank; d++) from.sizes[d] = to.sizes[d];
  al_copy_strided(&to, &from);
}

al_status al_copy_elements(al_call *call, al_tensor *out, const al_tensor *src, int32_t argument) {
  bool converts = out->dtype != src->dtype;
  if (converts && !(al_computes(out->dtype) && al_computes(src->dtype))) return al_fail(call, AL_DTYPE, argument);
  if (al_numel(out) == 0) return AL_OK;
  if (!converts && al_same_layout(out, src)) {
    memmove(out->data, src->data, al_nbytes(out));
    return AL_OK;
  }
  if (al_clashes(out, src)) return al_fail(call, AL_ARGUMENTS, argument);
  if (!converts) {
    copy_broadcast(out, src);
    return AL_OK;
  }
  bool as_float = out->dtype == AL_F32 || src->dtype == AL_F32;
  al_runs w;
  al_runs_begin(&w, 2, (const al_tensor *const[]){out, src});
  do {
    convert_run(&w, out, src, as_float);
  } while (al_runs_next(&w));
  return AL_OK;
}

/* Argument 0 into argument `out`; data types may differ only if the operator converts. */
static al_status copy(al_call *call, uint32_t out_argument, bool converts) {
  const al_tensor *src = al_tensor_arg(call, 0);
  al_tensor *out = al_out_of(call, out_argument);
  AL_RETURN_IF_FAILED(call);
  if (!converts && out->dtype != src->dtype) return al_fail(call, AL_DTYPE, (int32_t)out_argument);
  AL_TRY(al_resize_like(call, out, src));
  return al_copy_elements(call, out, src, 0);
}

AL_KERNEL(aten__to_copy_out, "aten::_to_copy.out") { return copy(call, 3, true); }
AL_KERNEL(aten_clone_out, "aten::clone.out") { return copy(call, 2, false); }
AL_KERNEL(aten_alias_copy_out, "aten::alias_copy.out") { return copy(call, 1, false); }
AL_KERNEL(aten_detach_copy_out, "aten::detach_copy.out") { return copy(call, 1, false); }
AL_KERNEL(aten_lift_fresh_copy_out, "aten::lift_fresh_copy.out") { return copy(call, 1, false); }
/* Real numbers are their own conjugates. */
AL_KERNEL(aten__conj_physical_out, "aten::_conj_physical.out") {
  AL_TRY(copy(call, 1, false));
  al_tensor *out = al_out_of(call, 1);
  uint32_t *parts = out->data, count = out->dtype == AL_C64 ? 2 * al_numel(out) : 0;
  for (uint32_t i = 1; i < count; i += 2) parts[i] ^= 0x80000000u; /* the sign of a float32 */
  return AL_OK;
}
AL_KERNEL(et_copy__h2d_copy_out, "et_copy::_h2d_copy.out") { return copy(call, 1, false); }
AL_KERNEL(et_copy__d2h_copy_out, "et_copy::_d2h_copy.out") { return copy(call, 1, false); }

/* `src` into a tensor of the sizes and type of `self`. */
static al_status copy_into(al_call *call, al_tensor *out, int32_t out_argument) {
  const al_tensor *self = al_tensor_arg(call, 0), *src = al_tensor_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  if (out->dtype != self->dtype) return al_fail(call, AL_DTYPE, out_argument);
  bool fits = src->rank <= self->rank;
  for (uint32_t d = 0; fits && d < src->rank; d++) {
    fits = src->sizes[d] == 1 || src->sizes[d] == self->sizes[self->rank - src->rank + d];
  }
  if (!fits) return al_fail(call, AL_SHAPE, 1);
  AL_TRY(al_resize_like(call, out, self));
  return al_copy_elements(call, out, src, 1);
}

AL_KERNEL(aten_copy_out, "aten::copy.out") { return copy_into(call, al_out_of(call, 3), 3); }
AL_KERNEL(aten_copy_, "aten::copy_") { return copy_into(call, al_out_arg(call, 0), 0); }

/* A null dim_order leaves it to the out tensor. */
static al_status check_dim_order(al_call *call, uint32_t argument, uint32_t out_argument) {
  const al_tensor *out = al_out_arg(call, out_argument);
  AL_RETURN_IF_FAILED(call);
  if (al_arg_is_null(call, argument)) return AL_OK;
  bool same = al_list_size(call, argument) == out->rank;
  for (uint32_t k = 0; same && k < out->rank; k++) same = al_int_item(call, argument, k) == out->dim_order[k];
  AL_RETURN_IF_FAILED(call);
  return same ? AL_OK : al_fail(call, AL_ARGUMENTS, (int32_t)argument);
}

AL_KERNEL(dim_order_ops__to_dim_order_copy_out, "dim_order_ops::_to_dim_order_copy.out") {
  AL_TRY(check_dim_order(call, 2, 3));
  return copy(call, 3, true);
}

AL_KERNEL(dim_order_ops__clone_dim_order_out, "dim_order_ops::_clone_dim_order.out") {
  AL_TRY(check_dim_order(call, 2, 3));
  return copy(call, 3, false);
}

/* Content is any. */
AL_KERNEL(dim_order_ops__empty_dim_order_out, "dim_order_ops::_empty_dim_order.out") {
  AL_TRY(check_dim_order(call, 1, 2));
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank = al_list_size(call, 0);
  al_tensor *out = al_out_of(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (rank > AL_MAX_RANK) return al_fail(call, AL_SHAPE, 0);
  for (uint32_t d = 0; d < rank; d++) {
    int64_t size = al_int_item(call, 0, d);
    if (size < 0 || size > INT32_MAX) return al_fail(call, AL_SHAPE, 0);
    sizes[d] = (int32_t)size;
  }
  AL_RETURN_IF_FAILED(call);
  return al_resize(call, out, rank, sizes);
}
