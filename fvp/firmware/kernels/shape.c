/* Operators that give the elements another shape or order: each is one strided copy of a view, or a few. */
#include "move.h"

static al_status copy_view(al_call *call, const al_view *view, const al_tensor *self, uint32_t out) {
  al_tensor *result = al_out_arg(call, out);
  AL_RETURN_IF_FAILED(call);
  return al_copy_out(call, view, self, result);
}

/* The view of argument 0. */
#define VIEW_OF_SELF()                              \
  const al_tensor *self = al_tensor_arg(call, 0);   \
  AL_RETURN_IF_FAILED(call);                        \
  al_view view;                                     \
  al_view_of(&view, self)

static void swap(al_view *view, uint32_t a, uint32_t b) {
  int32_t size = view->sizes[a], stride = view->strides[a];
  view->sizes[a] = view->sizes[b];
  view->strides[a] = view->strides[b];
  view->sizes[b] = size;
  view->strides[b] = stride;
}

/* Sizes of a view: one may be -1. */
static al_status view_sizes(al_call *call, uint32_t i, uint32_t numel, int32_t *sizes, uint32_t *rank) {
  int64_t items[AL_MAX_RANK], known = 1;
  int32_t open = -1;
  bool empty = false;
  AL_TRY(al_int_list(call, i, items, rank));
  for (uint32_t d = 0; d < *rank; d++) {
    if (items[d] < -1 || items[d] > INT32_MAX) return al_fail(call, AL_SHAPE, (int32_t)i);
    sizes[d] = (int32_t)items[d];
    if (items[d] == 0) {
      empty = true;
    } else if (items[d] == -1) {
      if (open >= 0) return al_fail(call, AL_SHAPE, (int32_t)i);
      open = (int32_t)d;
    } else if ((known *= items[d]) > UINT32_MAX) {
      known = UINT32_MAX; /* more than any tensor has; times the next size it still fits */
    }
  }
  if (empty) known = 0;
  if (open >= 0) {
    if (known == 0 || numel % known || numel / known > INT32_MAX) return al_fail(call, AL_SHAPE, (int32_t)i);
    sizes[open] = (int32_t)(numel / known);
  } else if (known != numel) {
    return al_fail(call, AL_SHAPE, (int32_t)i);
  }
  return AL_OK;
}

AL_KERNEL(aten_view_copy_out, "aten::view_copy.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank, numel = al_numel(self);
  AL_TRY(view_sizes(call, 1, numel, sizes, &rank));
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, rank, sizes));
  if (!al_is_contiguous(self) || !al_is_contiguous(out)) AL_TRY(al_apart(call, 0, self, out));
  al_copy_flat(out, 0, self, 0, numel);
  return AL_OK;
}

AL_KERNEL(aten_permute_copy_out, "aten::permute_copy.out") {
  VIEW_OF_SELF();
  int64_t dims[AL_MAX_RANK];
  uint32_t count, set;
  AL_TRY(al_dim_set(call, 1, self->rank, &set));
  AL_TRY(al_int_list(call, 1, dims, &count));
  if (count != self->rank) return al_fail(call, AL_SHAPE, 1);
  al_view permuted = view;
  for (uint32_t d = 0; d < count; d++) {
    uint32_t source = (uint32_t)al_wrap_dim(dims[d], self->rank);
    permuted.sizes[d] = view.sizes[source];
    permuted.strides[d] = view.strides[source];
  }
  return copy_view(call, &permuted, self, 2);
}

AL_KERNEL(aten_transpose_copy_int_out, "aten::transpose_copy.int_out") {
  VIEW_OF_SELF();
  uint32_t a, b;
  AL_TRY(al_dim_arg(call, 1, self->rank, &a));
  AL_TRY(al_dim_arg(call, 2, self->rank, &b));
  if (self->rank) swap(&view, a, b);
  return copy_view(call, &view, self, 3);
}

AL_KERNEL(aten_t_copy_out, "aten::t_copy.out") {
  VIEW_OF_SELF();
  if (self->rank > 2) return al_fail(call, AL_SHAPE, 0);
  if (self->rank == 2) swap(&view, 0, 1);
  return copy_view(call, &view, self, 1);
}

static al_status squeeze(al_call *call, al_view *view, const al_tensor *self, uint32_t dims) {
  for (uint32_t d = self->rank; d-- > 0;) {
    if ((dims >> d & 1) && view->sizes[d] == 1) al_view_drop(view, d);
  }
  return copy_view(call, view, self, 2);
}

AL_KERNEL(aten_squeeze_copy_dim_out, "aten::squeeze_copy.dim_out") {
  VIEW_OF_SELF();
  uint32_t dim;
  AL_TRY(al_dim_arg(call, 1, self->rank, &dim));
  return squeeze(call, &view, self, 1u << dim);
}

AL_KERNEL(aten_squeeze_copy_dims_out, "aten::squeeze_copy.dims_out") {
  VIEW_OF_SELF();
  uint32_t dims;
  AL_TRY(al_dim_set(call, 1, self->rank, &dims));
  return squeeze(call, &view, self, dims);
}

AL_KERNEL(aten_unsqueeze_copy_out, "aten::unsqueeze_copy.out") {
  VIEW_OF_SELF();
  uint32_t dim;
  if (self->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 0);
  AL_TRY(al_dim_arg(call, 1, self->rank + 1u, &dim));
  al_view_insert(&view, dim, 1, 0);
  return copy_view(call, &view, self, 2);
}

AL_KERNEL(aten_expand_copy_out, "aten::expand_copy.out") {
  VIEW_OF_SELF();
  int64_t sizes[AL_MAX_RANK];
  uint32_t rank;
  AL_TRY(al_int_list(call, 1, sizes, &rank));
  if (rank < self->rank) return al_fail(call, AL_SHAPE, 1);
  uint32_t lead = rank - self->rank;
  for (uint32_t d = 0; d < lead; d++) al_view_insert(&view, 0, 1, 0);
  for (uint32_t d = 0; d < rank; d++) {
    if (sizes[d] == view.sizes[d] || (sizes[d] == -1 && d >= lead)) continue;
    if (view.sizes[d] != 1 || sizes[d] < 0 || sizes[d] > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
    view.sizes[d] = (int32_t)sizes[d];
    view.strides[d] = 0;
  }
  return copy_view(call, &view, self, 3);
}

/* The first copy is made of self, the others of it: each dimension repeats what the ones after it have made. */
AL_KERNEL(aten_repeat_out, "aten::repeat.out") {
  VIEW_OF_SELF();
  al_tensor *out = al_out_arg(call, 2);
  int32_t repeats[AL_MAX_RANK], sizes[AL_MAX_RANK];
  uint32_t rank;
  AL_TRY(al_size_list(call, 1, repeats, &rank));
  AL_RETURN_IF_FAILED(call);
  if (rank < self->rank) return al_fail(call, AL_SHAPE, 1);
  while (view.rank < rank) al_view_insert(&view, 0, 1, 0);
  for (uint32_t d = 0; d < rank; d++) {
    int64_t size = (int64_t)repeats[d] * view.sizes[d];
    if (size > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
    sizes[d] = (int32_t)size;
  }
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, rank, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  if (!al_numel(out)) return AL_OK;
  al_view box;
  al_view_of(&box, out);
  for (uint32_t d = 0; d < rank; d++) box.sizes[d] = view.sizes[d];
  al_copy_strided(&box, &view);
  for (uint32_t d = rank; d-- > 0;) {
    al_view next = box;
    for (int32_t k = 1; k < repeats[d]; k++) {
      al_view_advance(&next, d, view.sizes[d]);
      al_copy_strided(&next, &box);
    }
    box.sizes[d] = sizes[d];
  }
  return AL_OK;
}

AL_KERNEL(aten_flip_out, "aten::flip.out") {
  VIEW_OF_SELF();
  uint32_t dims;
  AL_TRY(al_dim_set(call, 1, self->rank, &dims));
  for (uint32_t d = 0; d < self->rank; d++) {
    if (!(dims >> d & 1) || view.sizes[d] == 0) continue;
    al_view_advance(&view, d, view.sizes[d] - 1);
    view.strides[d] = -view.strides[d];
  }
  return copy_view(call, &view, self, 2);
}

/* a mod n, not negative; 0 for n 0 */
static int32_t modulo(int64_t a, int32_t n) {
  if (n == 0) return 0;
  int64_t rest = a % n;
  return (int32_t)(rest < 0 ? rest + n : rest);
}

/* Each dimension is cut into two parts that change places; `second` has a bit for each dimension where the part moved
 * is the second one. */
static void roll_part(const al_tensor *out, const al_tensor *self, const int32_t *shifts, uint32_t second) {
  al_view to, from;
  al_view_of(&to, out);
  al_view_of(&from, self);
  for (uint32_t d = 0; d < self->rank; d++) {
    int32_t shift = shifts[d], rest = to.sizes[d] - shift;
    if (!shift) continue;
    bool is_second = second >> d & 1;
    al_view_advance(is_second ? &from : &to, d, is_second ? rest : shift);
    to.sizes[d] = from.sizes[d] = is_second ? shift : rest;
  }
  al_copy_strided(&to, &from);
}

AL_KERNEL(aten_roll_out, "aten::roll.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 3);
  int64_t given[AL_MAX_RANK], dims[AL_MAX_RANK];
  uint32_t count, dim_count;
  AL_TRY(al_int_list(call, 1, given, &count));
  AL_TRY(al_int_list(call, 2, dims, &dim_count));
  AL_RETURN_IF_FAILED(call);
  if (count == 0 || (dim_count ? count != dim_count : count != 1)) return al_fail(call, AL_VALUE, 1);
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize_like(call, out, self));
  AL_TRY(al_apart(call, 0, self, out));
  uint32_t numel = al_numel(self);
  if (dim_count == 0) {
    uint32_t shift = numel ? (uint32_t)(given[0] % (int64_t)numel + (int64_t)numel) % numel : 0;
    al_copy_flat(out, shift, self, 0, numel - shift);
    al_copy_flat(out, 0, self, numel - shift, shift);
    return AL_OK;
  }
  int32_t shifts[AL_MAX_RANK] = {0};
  uint32_t rolled = 0;
  for (uint32_t k = 0; k < count; k++) {
    int32_t d = al_wrap_dim(dims[k], self->rank);
    if (d < 0 || !self->rank) return al_fail(call, AL_INDEX, 2);
    shifts[d] = modulo((int64_t)shifts[d] + modulo(given[k], self->sizes[d]), self->sizes[d]);
    if (shifts[d]) rolled |= 1u << d;
    else rolled &= ~(1u << d);
  }
  /* all subsets of `rolled` */
  for (uint32_t second = rolled;; second = (second - 1) & rolled) {
    roll_part(out, self, shifts, second);
    if (!second) return AL_OK;
  }
}

AL_KERNEL(aten_diagonal_copy_out, "aten::diagonal_copy.out") {
  VIEW_OF_SELF();
  int64_t offset = al_int_arg(call, 1);
  uint32_t a, b;
  AL_TRY(al_dim_arg(call, 2, self->rank, &a));
  AL_TRY(al_dim_arg(call, 3, self->rank, &b));
  if (a == b) return al_fail(call, AL_VALUE, 3);
  int64_t rows = view.sizes[a], columns = view.sizes[b];
  if (offset > columns) offset = columns;
  if (offset < -rows) offset = -rows;
  if (offset >= 0) {
    columns -= offset;
    if (columns) al_view_advance(&view, b, (int32_t)offset);
  } else {
    rows += offset;
    if (rows) al_view_advance(&view, a, (int32_t)-offset);
  }
  int32_t size = (int32_t)(rows < columns ? rows : columns), stride = view.strides[a] + view.strides[b];
  al_view_drop(&view, a > b ? a : b);
  al_view_drop(&view, a > b ? b : a);
  al_view_insert(&view, view.rank, size, stride);
  return copy_view(call, &view, self, 4);
}

AL_KERNEL(aten_unfold_copy_out, "aten::unfold_copy.out") {
  VIEW_OF_SELF();
  uint32_t dim;
  int64_t size = al_int_arg(call, 2), step = al_int_arg(call, 3);
  AL_TRY(al_dim_arg(call, 1, self->rank, &dim));
  if (step <= 0) return al_fail(call, AL_VALUE, 3);
  int32_t available = self->rank ? view.sizes[dim] : 1;
  if (size < 0 || size > available) return al_fail(call, AL_VALUE, 2);
  if (self->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 0);
  int32_t stride = self->rank ? view.strides[dim] : 1;
  if (self->rank) {
    int64_t last = (available - size) / step;
    view.sizes[dim] = (int32_t)last + 1;
    view.strides[dim] = last ? (int32_t)(stride * step) : 0;
  }
  al_view_insert(&view, view.rank, (int32_t)size, stride);
  return copy_view(call, &view, self, 4);
}

/* Strides are those of memory, whatever the tensor's own order is. */
AL_KERNEL(aten_as_strided_copy_out, "aten::as_strided_copy.out") {
  VIEW_OF_SELF();
  int64_t strides[AL_MAX_RANK], offset = al_int_arg_or(call, 3, 0);
  uint32_t count;
  AL_TRY(al_size_list(call, 1, view.sizes, &view.rank));
  AL_TRY(al_int_list(call, 2, strides, &count));
  if (count != view.rank) return al_fail(call, AL_SHAPE, 2);
  if (offset < 0) return al_fail(call, AL_VALUE, 3);
  int64_t numel = al_numel(self), last = offset;
  bool empty = false;
  for (uint32_t d = 0; d < count; d++) {
    if (strides[d] < 0) return al_fail(call, AL_VALUE, 2);
    empty |= view.sizes[d] == 0;
  }
  for (uint32_t d = 0; d < count; d++) {
    view.strides[d] = view.sizes[d] > 1 ? (int32_t)(strides[d] & INT32_MAX) : 0;
    if (empty || view.sizes[d] <= 1) continue;
    if (strides[d] > INT32_MAX || last >= numel) return al_fail(call, AL_INDEX, 2);
    last += strides[d] * (view.sizes[d] - 1);
  }
  if (!empty && last >= numel) return al_fail(call, AL_INDEX, 3);
  if (!empty) view.data += (size_t)offset * view.element;
  return copy_view(call, &view, self, 4);
}

/* A complex number is two real ones in a row. */
AL_KERNEL(aten_view_as_real_copy_out, "aten::view_as_real_copy.out") {
  VIEW_OF_SELF();
  al_tensor *out = al_out_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  if (self->dtype != AL_C64 || out->dtype != AL_F32) return al_fail(call, AL_DTYPE, 0);
  if (self->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 0);
  for (uint32_t d = 0; d < self->rank; d++) view.strides[d] *= 2;
  al_view_insert(&view, view.rank, 2, 1);
  AL_TRY(al_resize(call, out, view.rank, view.sizes));
  AL_TRY(al_apart(call, 0, self, out));
  al_view to;
  al_view_of(&to, out);
  al_copy_strided(&to, &view);
  return AL_OK;
}

/* Blocks of factor x factor pixels lie in as many channels; each place (i, j) in the block is one copy. */
static al_status shuffle(al_call *call, bool inverse) {
  const al_tensor *self = al_tensor_arg(call, 0);
  int64_t factor = al_int_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (self->rank < 3) return al_fail(call, AL_SHAPE, 0);
  if (factor <= 0) return al_fail(call, AL_VALUE, 1);
  uint32_t c = self->rank - 3u, h = c + 1, w = c + 2;
  int32_t sizes[AL_MAX_RANK];
  memcpy(sizes, self->sizes, self->rank * sizeof *sizes);
  if (factor > 46340) return al_fail(call, AL_SHAPE, 1); /* its square is more than a size can be */
  int32_t f = (int32_t)factor;
  int64_t wide[3] = {sizes[c], sizes[h], sizes[w]};
  if (inverse ? sizes[h] % f || sizes[w] % f : sizes[c] % (f * f)) return al_fail(call, AL_SHAPE, 0);
  wide[0] = inverse ? wide[0] * f * f : wide[0] / (f * f);
  wide[1] = inverse ? wide[1] / f : wide[1] * f;
  wide[2] = inverse ? wide[2] / f : wide[2] * f;
  for (uint32_t k = 0; k < 3; k++) {
    if (wide[k] > INT32_MAX) return al_fail(call, AL_SHAPE, 0);
    sizes[c + k] = (int32_t)wide[k];
  }
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, self->rank, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  if (!al_numel(out)) return AL_OK;
  al_view deep, flat;
  al_view_of(&deep, inverse ? out : self);
  al_view_of(&flat, inverse ? self : out);
  deep.sizes[c] = flat.sizes[c];
  flat.sizes[h] = deep.sizes[h];
  flat.sizes[w] = deep.sizes[w];
  const int32_t row = flat.strides[h], column = flat.strides[w], channel = deep.strides[c];
  deep.strides[c] *= f * f;
  flat.strides[h] *= f;
  flat.strides[w] *= f;
  uint8_t *deep_data = deep.data, *flat_data = flat.data;
  for (int32_t i = 0; i < f; i++) {
    for (int32_t j = 0; j < f; j++) {
      deep.data = deep_data + (ptrdiff_t)(i * f + j) * channel * (ptrdiff_t)deep.element;
      flat.data = flat_data + ((ptrdiff_t)i * row + (ptrdiff_t)j * column) * (ptrdiff_t)flat.element;
      if (inverse) al_copy_strided(&deep, &flat);
      else al_copy_strided(&flat, &deep);
    }
  }
  return AL_OK;
}

AL_KERNEL(aten_pixel_shuffle_out, "aten::pixel_shuffle.out") {
  return shuffle(call, false);
}

AL_KERNEL(aten_pixel_unshuffle_out, "aten::pixel_unshuffle.out") {
  return shuffle(call, true);
}
