/* Parts of tensors: taking them out, putting them in, and putting tensors together. */
#include "move.h"

/* A range of one dimension as torch's slices give it: `count` indices from `start` on, `step` apart. */
typedef struct range {
  uint32_t dim;
  int32_t start, step, count;
} range;

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/* Arguments i to i + 3: dim, start, end, step. */
static al_status range_args(al_call *call, uint32_t i, const al_tensor *self, range *r) {
  int64_t start = al_int_arg_or(call, i + 1, 0), end = al_int_arg_or(call, i + 2, INT64_MAX);
  int64_t step = al_int_arg(call, i + 3);
  AL_TRY(al_dim_arg(call, i, self->rank, &r->dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  if (step < 1) return al_fail(call, AL_VALUE, (int32_t)i + 3);
  int64_t size = self->sizes[r->dim];
  start = clamp(start < 0 ? start + size : start, 0, size);
  end = clamp(end < 0 ? end + size : end, start, size);
  r->start = (int32_t)start;
  r->step = (int32_t)clamp(step, 1, INT32_MAX);
  r->count = end > start ? (int32_t)((end - start - 1) / step) + 1 : 0;
  return AL_OK;
}

static void take(al_view *view, const range *r) {
  if (r->count) al_view_advance(view, r->dim, r->start);
  view->sizes[r->dim] = r->count;
  view->strides[r->dim] = r->count > 1 ? view->strides[r->dim] * r->step : 0;
}

/* Argument i + 1 as an index of dimension i. */
static al_status index_args(al_call *call, uint32_t i, const al_tensor *self, range *r) {
  int64_t index = al_int_arg(call, i + 1);
  AL_TRY(al_dim_arg(call, i, self->rank, &r->dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  int64_t size = self->sizes[r->dim];
  if (index < -size || index >= size) return al_fail(call, AL_INDEX, (int32_t)i + 1);
  r->start = (int32_t)(index < 0 ? index + size : index);
  r->step = r->count = 1;
  return AL_OK;
}

static al_status copy_range(al_call *call, const al_tensor *self, const range *r, bool drop, al_tensor *out) {
  al_view view;
  al_view_of(&view, self);
  take(&view, r);
  if (drop) al_view_drop(&view, r->dim);
  return al_copy_out(call, &view, self, out);
}

AL_KERNEL(aten_slice_copy_Tensor_out, "aten::slice_copy.Tensor_out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  range r;
  AL_TRY(range_args(call, 1, self, &r));
  return copy_range(call, self, &r, false, out);
}

AL_KERNEL(aten_select_copy_int_out, "aten::select_copy.int_out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  range r;
  AL_TRY(index_args(call, 1, self, &r));
  return copy_range(call, self, &r, true, out);
}

AL_KERNEL(aten_narrow_copy_out, "aten::narrow_copy.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  int64_t start = al_int_arg(call, 2), length = al_int_arg(call, 3);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  range r = {.step = 1};
  AL_TRY(al_dim_arg(call, 1, self->rank, &r.dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  int64_t size = self->sizes[r.dim];
  if (start < -size || start > size) return al_fail(call, AL_INDEX, 2);
  if (start < 0) start += size;
  if (length < 0) return al_fail(call, AL_VALUE, 3);
  if (length > size - start) return al_fail(call, AL_INDEX, 3);
  r.start = (int32_t)start;
  r.count = (int32_t)length;
  return copy_range(call, self, &r, false, out);
}

/* Part k of self is result k. */
static al_status copy_part(al_call *call, const al_tensor *self, const range *r, bool drop, uint32_t outs, uint32_t k) {
  al_tensor *out = al_out_item(call, outs, k);
  AL_RETURN_IF_FAILED(call);
  return copy_range(call, self, r, drop, out);
}

AL_KERNEL(aten_split_copy_Tensor_out, "aten::split_copy.Tensor_out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  int64_t part = al_int_arg(call, 1);
  uint32_t count = al_list_size(call, 3);
  AL_RETURN_IF_FAILED(call);
  range r = {.step = 1};
  AL_TRY(al_dim_arg(call, 2, self->rank, &r.dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  int64_t size = self->sizes[r.dim];
  if (part < 0 || (part == 0 && size)) return al_fail(call, AL_VALUE, 1);
  int64_t parts = size ? (size - 1) / part + 1 : 1;
  if (count != parts) return al_fail(call, AL_ARGUMENTS, 3);
  for (uint32_t k = 0; k < count; k++) {
    r.start = (int32_t)(k * part);
    r.count = (int32_t)clamp(part, 0, size - r.start);
    AL_TRY(copy_part(call, self, &r, false, 3, k));
  }
  return AL_OK;
}

AL_KERNEL(aten_split_with_sizes_copy_out, "aten::split_with_sizes_copy.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  uint32_t count = al_list_size(call, 1), outs = al_list_size(call, 3);
  AL_RETURN_IF_FAILED(call);
  range r = {.step = 1};
  AL_TRY(al_dim_arg(call, 2, self->rank, &r.dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  int64_t rest = self->sizes[r.dim];
  for (uint32_t k = 0; k < count; k++) {
    int64_t part = al_int_item(call, 1, k);
    AL_RETURN_IF_FAILED(call);
    if (part < 0 || part > rest) return al_fail(call, AL_VALUE, 1);
    rest -= part;
  }
  if (rest) return al_fail(call, AL_VALUE, 1);
  if (count != outs) return al_fail(call, AL_ARGUMENTS, 3);
  for (uint32_t k = 0; k < count; k++) {
    r.count = (int32_t)al_int_item(call, 1, k);
    AL_TRY(copy_part(call, self, &r, false, 3, k));
    r.start += r.count;
  }
  return AL_OK;
}

AL_KERNEL(aten_unbind_copy_int_out, "aten::unbind_copy.int_out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  uint32_t count = al_list_size(call, 2);
  AL_RETURN_IF_FAILED(call);
  range r = {.step = 1, .count = 1};
  AL_TRY(al_dim_arg(call, 1, self->rank, &r.dim));
  if (!self->rank) return al_fail(call, AL_SHAPE, 0);
  if (count != (uint32_t)self->sizes[r.dim]) return al_fail(call, AL_ARGUMENTS, 2);
  for (; r.start < self->sizes[r.dim]; r.start++) {
    AL_TRY(copy_part(call, self, &r, true, 2, (uint32_t)r.start));
  }
  return AL_OK;
}

/* out is self with `src` in the place of the range; the dtype of src may be another one. */
static al_status scatter_range(al_call *call, const al_tensor *self, const al_tensor *src, const range *r, bool drop,
                               al_tensor *out) {
  AL_TRY(al_start_from(call, self, out));
  al_view to, from;
  al_view_of(&to, out);
  take(&to, r);
  if (drop) al_view_drop(&to, r->dim);
  al_view_of(&from, src);
  if (from.rank != to.rank || memcmp(from.sizes, to.sizes, to.rank * sizeof *to.sizes)) {
    return al_fail(call, AL_SHAPE, 1);
  }
  AL_TRY(al_apart(call, 1, src, out));
  return al_convert_strided(call, &to, out->dtype, &from, src->dtype);
}

AL_KERNEL(aten_select_scatter_out, "aten::select_scatter.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *src = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  range r;
  AL_TRY(index_args(call, 2, self, &r));
  return scatter_range(call, self, src, &r, true, out);
}

AL_KERNEL(aten_slice_scatter_out, "aten::slice_scatter.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *src = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  range r;
  AL_TRY(range_args(call, 2, self, &r));
  return scatter_range(call, self, src, &r, false, out);
}

/* torch promotes to the common dtype; the result may be of a wider kind (bool, integer, float), not of a narrower. */
static bool fits_kind(uint8_t from, uint8_t to) {
  if (al_is_float(from)) return al_is_float(to);
  return from == AL_BOOL || to != AL_BOOL;
}

static al_status put_part(al_call *call, al_view *place, const al_tensor *part, const al_tensor *out) {
  al_view from;
  al_view_of(&from, part);
  AL_TRY(al_apart(call, 0, part, out));
  return al_convert_strided(call, place, out->dtype, &from, part->dtype);
}

/* Tensor k of argument 0. */
static al_status part_of(al_call *call, uint32_t k, const al_tensor *out, const al_tensor **part) {
  *part = al_tensor_item(call, 0, k);
  AL_RETURN_IF_FAILED(call);
  if (!*part) return al_fail(call, AL_ARGUMENTS, 0);
  return fits_kind((*part)->dtype, out->dtype) ? AL_OK : al_fail(call, AL_DTYPE, 0);
}

/* torch ignores these, whatever the shapes of the others are. */
static bool is_legacy_empty(const al_tensor *tensor) {
  return tensor->rank == 1 && tensor->sizes[0] == 0;
}

static bool same_but_for(const al_tensor *a, const al_tensor *b, uint32_t dim) {
  if (a->rank != b->rank) return false;
  for (uint32_t d = 0; d < a->rank; d++) {
    if (d != dim && a->sizes[d] != b->sizes[d]) return false;
  }
  return true;
}

AL_KERNEL(aten_cat_out, "aten::cat.out") {
  uint32_t count = al_list_size(call, 0);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (!count) return al_fail(call, AL_ARGUMENTS, 0);
  const al_tensor *first = NULL, *part = NULL;
  uint32_t dim = 0;
  int64_t total = 0;
  for (uint32_t k = 0; k < count; k++) {
    AL_TRY(part_of(call, k, out, &part));
    if (!part->rank) return al_fail(call, AL_SHAPE, 0);
    if (is_legacy_empty(part)) continue;
    if (!first) {
      first = part;
      AL_TRY(al_dim_arg(call, 1, first->rank, &dim));
    }
    if (!same_but_for(first, part, dim)) return al_fail(call, AL_SHAPE, 0);
    total += part->sizes[dim];
  }
  if (!first) return al_resize_like(call, out, part);
  if (total > INT32_MAX) return al_fail(call, AL_SHAPE, 0);
  int32_t sizes[AL_MAX_RANK];
  memcpy(sizes, first->sizes, first->rank * sizeof *sizes);
  sizes[dim] = (int32_t)total;
  AL_TRY(al_resize(call, out, first->rank, sizes));
  al_view place;
  al_view_of(&place, out);
  for (uint32_t k = 0; k < count; k++) {
    AL_TRY(part_of(call, k, out, &part));
    if (is_legacy_empty(part)) continue;
    place.sizes[dim] = part->sizes[dim];
    AL_TRY(put_part(call, &place, part, out));
    al_view_advance(&place, dim, part->sizes[dim]);
  }
  return AL_OK;
}

AL_KERNEL(aten_stack_out, "aten::stack.out") {
  uint32_t count = al_list_size(call, 0), dim;
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (!count || count > INT32_MAX) return al_fail(call, AL_ARGUMENTS, 0);
  const al_tensor *first, *part;
  AL_TRY(part_of(call, 0, out, &first));
  if (first->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 0);
  AL_TRY(al_dim_arg(call, 1, first->rank + 1u, &dim));
  al_view place;
  al_view_of(&place, first);
  al_view_insert(&place, dim, (int32_t)count, 0);
  AL_TRY(al_resize(call, out, place.rank, place.sizes));
  for (uint32_t k = 0; k < count; k++) {
    AL_TRY(part_of(call, k, out, &part));
    if (!al_same_sizes(first, part)) return al_fail(call, AL_SHAPE, 0);
    al_view_of(&place, out);
    al_view_advance(&place, dim, (int32_t)k);
    al_view_drop(&place, dim);
    AL_TRY(put_part(call, &place, part, out));
  }
  return AL_OK;
}

AL_KERNEL(aten_tril_out, "aten::tril.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  int64_t diagonal = al_int_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (self->rank < 2) return al_fail(call, AL_SHAPE, 0);
  AL_TRY(al_start_from(call, self, out));
  if (al_numel(out) == 0) return AL_OK;
  uint32_t row = self->rank - 2u, column = self->rank - 1u;
  static const uint64_t zero = 0;
  al_view zeros = {.data = (uint8_t *)(uintptr_t)&zero, .rank = out->rank}; /* every stride 0, only read */
  for (int32_t i = 0; i < out->sizes[row]; i++) {
    int64_t width = out->sizes[column], kept = clamp(clamp(diagonal, -i - 1, width) + i + 1, 0, width);
    al_view above;
    al_view_of(&above, out);
    zeros.element = above.element;
    al_view_advance(&above, row, i);
    above.sizes[row] = 1;
    if (kept < width) al_view_advance(&above, column, (int32_t)kept);
    above.sizes[column] = (int32_t)(width - kept);
    al_copy_strided(&above, &zeros);
  }
  return AL_OK;
}
