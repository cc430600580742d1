/* Operators whose indices, masks or counts are tensors. */
#include "move.h"

static bool is_index(const al_tensor *tensor) {
  return tensor->dtype == AL_I64 || tensor->dtype == AL_I32;
}

/* A value of an index tensor as an index of a dimension of this size; -1 if it is none. */
static int32_t plain_index(const al_tensor *index, int32_t offset, int32_t size) {
  int64_t value = al_load_int(index->data, (uint32_t)offset, index->dtype);
  return value >= 0 && value < size ? (int32_t)value : -1;
}

/* ------------------------------------------------------------ gather and scatter */

/* Dimension of self that argument 1 names, after the checks that gather and scatter have in common: the index has the
 * rank of self and is nowhere larger than `limit`, but for `dim` if it does not count. */
static al_status gather_dim(al_call *call, const al_tensor *self, const al_tensor *index, uint32_t *dim) {
  if (!is_index(index)) return al_fail(call, AL_DTYPE, 2);
  AL_TRY(al_dim_arg(call, 1, self->rank, dim));
  if (!al_numel(index)) return AL_OK;
  if ((self->rank ? self->rank : 1) != (index->rank ? index->rank : 1)) return al_fail(call, AL_SHAPE, 2);
  if (!self->rank || !index->rank) return AL_OK;
  for (uint32_t d = 0; d < self->rank; d++) {
    if (d != *dim && index->sizes[d] > self->sizes[d]) return al_fail(call, AL_SHAPE, 2);
  }
  return AL_OK;
}

/* Operand o: the element at the walk's index, but at 0 in `dim`, whose stride is given back. */
static int32_t walk_lines(al_walk *walk, uint32_t o, const al_tensor *tensor, uint32_t dim) {
  int32_t strides[AL_MAX_RANK];
  if (!tensor->rank) return 1;
  al_strides(tensor, strides);
  for (uint32_t d = 0; d < walk->rank; d++) walk->strides[o][d] = d == dim ? 0 : strides[d];
  return strides[dim];
}

AL_KERNEL(aten_gather_out, "aten::gather.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *index = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 4);
  uint32_t dim;
  AL_RETURN_IF_FAILED(call);
  AL_TRY(gather_dim(call, self, index, &dim));
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize_like(call, out, index));
  AL_TRY(al_apart(call, 0, self, out));
  AL_TRY(al_apart(call, 2, index, out));
  uint32_t numel = al_numel(index), element = al_dtype_size((al_dtype)out->dtype);
  if (!numel) return AL_OK;
  int32_t size = self->rank ? self->sizes[dim] : 1;
  al_walk walk;
  al_walk_over(&walk, index->rank, index->sizes);
  al_walk_operand(&walk, 0, out);
  al_walk_operand(&walk, 1, index);
  int32_t stride = walk_lines(&walk, 2, self, dim);
  for (; numel; numel--, al_walk_next(&walk)) {
    int32_t i = plain_index(index, walk.offsets[1], size);
    if (i < 0) return al_fail(call, AL_INDEX, 2);
    al_put(out->data, (uint32_t)walk.offsets[0], self->data, (uint32_t)(walk.offsets[2] + i * stride), element);
  }
  return AL_OK;
}

/* `src` NULL: `value` is what goes everywhere. */
static al_status scatter(al_call *call, const al_tensor *src, const uint8_t *value, al_tensor *out, bool add) {
  const al_tensor *self = al_tensor_arg(call, 0), *index = al_tensor_arg(call, 2);
  uint32_t dim;
  AL_RETURN_IF_FAILED(call);
  AL_TRY(gather_dim(call, self, index, &dim));
  uint32_t numel = al_numel(index), element = al_dtype_size((al_dtype)out->dtype);
  if (src && src->dtype != self->dtype) return al_fail(call, AL_DTYPE, 3);
  if (add && !al_computes(self->dtype)) return al_fail(call, AL_DTYPE, 0);
  if (numel && src && (src->rank ? src->rank : 1) != (index->rank ? index->rank : 1)) {
    return al_fail(call, AL_SHAPE, 3);
  }
  for (uint32_t d = 0; numel && src && src->rank && d < index->rank; d++) {
    if (index->sizes[d] > src->sizes[d]) return al_fail(call, AL_SHAPE, 3);
  }
  if (numel > 1 && src && !src->rank) return al_fail(call, AL_SHAPE, 3);
  AL_TRY(al_start_from(call, self, out));
  AL_TRY(al_apart(call, 2, index, out));
  if (src) AL_TRY(al_apart(call, 3, src, out));
  if (!numel) return AL_OK;
  int32_t size = out->rank ? out->sizes[dim] : 1;
  al_walk walk;
  al_walk_over(&walk, index->rank, index->sizes);
  int32_t stride = walk_lines(&walk, 0, out, dim);
  al_walk_operand(&walk, 1, index);
  if (src && src->rank && index->rank) al_strides(src, walk.strides[2]);
  for (; numel; numel--, al_walk_next(&walk)) {
    int32_t i = plain_index(index, walk.offsets[1], size);
    if (i < 0) return al_fail(call, AL_INDEX, 2);
    uint32_t to = (uint32_t)(walk.offsets[0] + i * stride), from = (uint32_t)walk.offsets[2];
    if (add) al_add_element(out->data, to, src->data, from, out->dtype);
    else al_put(out->data, to, src ? src->data : value, from, element);
  }
  return AL_OK;
}

AL_KERNEL(aten_scatter_src_out, "aten::scatter.src_out") {
  const al_tensor *src = al_tensor_arg(call, 3);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  return scatter(call, src, NULL, out, false);
}

AL_KERNEL(aten_scatter_value_out, "aten::scatter.value_out") {
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  uint8_t value[8];
  AL_TRY(al_scalar_element(call, 3, out->dtype, value));
  return scatter(call, NULL, value, out, false);
}

AL_KERNEL(aten_scatter_add_out, "aten::scatter_add.out") {
  const al_tensor *src = al_tensor_arg(call, 3);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  return scatter(call, src, NULL, out, true);
}

/* ------------------------------------------------------------ rows by index */

/* Slices `dim` of self by the values of `index` become those of out. */
static al_status select_slices(al_call *call, const al_tensor *self, uint32_t dim, const al_tensor *index,
                               int32_t argument, const al_view *place, uint32_t place_dim) {
  al_view to = *place, from;
  al_view_of(&from, self);
  int32_t size = self->rank ? from.sizes[dim] : 1;
  to.sizes[place_dim] = 1;
  if (self->rank) from.sizes[dim] = 1;
  al_walk walk;
  al_walk_over(&walk, index->rank, index->sizes);
  al_walk_operand(&walk, 0, index);
  const uint8_t *first = from.data;
  for (uint32_t numel = al_numel(index); numel; numel--, al_walk_next(&walk)) {
    int32_t i = plain_index(index, walk.offsets[0], size);
    if (i < 0) return al_fail(call, AL_INDEX, argument);
    from.data = (uint8_t *)(uintptr_t)first;
    if (self->rank) al_view_advance(&from, dim, i);
    al_copy_strided(&to, &from);
    al_view_advance(&to, place_dim, 1);
  }
  return AL_OK;
}

AL_KERNEL(aten_index_select_out, "aten::index_select.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *index = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 3);
  uint32_t dim, numel;
  AL_RETURN_IF_FAILED(call);
  if (!is_index(index)) return al_fail(call, AL_DTYPE, 2);
  AL_TRY(al_dim_arg(call, 1, self->rank, &dim));
  numel = al_numel(index);
  if (index->rank > 1 || (!self->rank && numel != 1)) return al_fail(call, AL_SHAPE, 2);
  int32_t sizes[AL_MAX_RANK];
  memcpy(sizes, self->sizes, self->rank * sizeof *sizes);
  if (self->rank) sizes[dim] = (int32_t)numel;
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, self->rank, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  AL_TRY(al_apart(call, 2, index, out));
  al_view place;
  al_view_of(&place, out);
  if (!place.rank) al_view_insert(&place, 0, 1, 1);
  if (self->rank) return select_slices(call, self, dim, index, 2, &place, dim);
  if (plain_index(index, 0, 1) < 0) return al_fail(call, AL_INDEX, 2);
  return al_start_from(call, self, out);
}

AL_KERNEL(aten_embedding_out, "aten::embedding.out") {
  const al_tensor *weight = al_tensor_arg(call, 0), *index = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  if (!is_index(index)) return al_fail(call, AL_DTYPE, 1);
  if (weight->rank != 2) return al_fail(call, AL_SHAPE, 0);
  if (index->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 1);
  int32_t sizes[AL_MAX_RANK], row[AL_MAX_RANK];
  memcpy(sizes, index->sizes, index->rank * sizeof *sizes);
  sizes[index->rank] = weight->sizes[1];
  AL_TRY(al_same_dtype(call, 0, weight, out));
  AL_TRY(al_resize(call, out, index->rank + 1u, sizes));
  AL_TRY(al_apart(call, 0, weight, out));
  AL_TRY(al_apart(call, 1, index, out));
  al_strides(weight, row);
  al_walk walk;
  al_walk_over(&walk, index->rank, sizes);
  al_walk_operand(&walk, 0, index);
  al_strides(out, walk.strides[1]);
  al_view to = {.element = al_dtype_size((al_dtype)out->dtype), .rank = 1, .sizes = {weight->sizes[1]}}, from = to;
  to.strides[0] = walk.strides[1][index->rank];
  from.strides[0] = row[1];
  walk.strides[1][index->rank] = 0;
  for (uint32_t numel = al_numel(index); numel; numel--, al_walk_next(&walk)) {
    int32_t i = plain_index(index, walk.offsets[0], weight->sizes[0]);
    if (i < 0) return al_fail(call, AL_INDEX, 1);
    to.data = (uint8_t *)out->data + (size_t)walk.offsets[1] * to.element;
    from.data = (uint8_t *)weight->data + (size_t)(i * row[0]) * to.element;
    al_copy_strided(&to, &from);
  }
  return AL_OK;
}

/* ------------------------------------------------------------ masks */

static bool is_true(const al_tensor *mask, int32_t offset) {
  return ((const uint8_t *)mask->data)[offset] != 0;
}

/* A walk over self and mask, broadcast to one another: operands 0 and 1. */
static al_status walk_mask(al_call *call, al_walk *walk, const al_tensor *self, const al_tensor *mask,
                           uint32_t *numel) {
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank = self->rank;
  if (mask->dtype != AL_BOOL) return al_fail(call, AL_DTYPE, 1);
  memcpy(sizes, self->sizes, rank * sizeof *sizes);
  if (!al_broadcast(sizes, &rank, mask->sizes, mask->rank)) return al_fail(call, AL_SHAPE, 1);
  al_walk_over(walk, rank, sizes);
  al_walk_operand(walk, 0, self);
  al_walk_operand(walk, 1, mask);
  uint64_t count = 1;
  bool empty = false;
  for (uint32_t d = 0; d < rank; d++) {
    empty |= sizes[d] == 0;
    count *= (uint32_t)sizes[d];
    if (count > UINT32_MAX) count = UINT32_MAX; /* more than any tensor has */
  }
  if (!empty && count > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
  *numel = empty ? 0 : (uint32_t)count;
  return AL_OK;
}

AL_KERNEL(aten_masked_select_out, "aten::masked_select.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *mask = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  al_walk walk;
  uint32_t numel, element = al_dtype_size((al_dtype)out->dtype);
  AL_TRY(walk_mask(call, &walk, self, mask, &numel));
  int32_t count = 0, to = 0;
  for (uint32_t k = 0; k < numel; k++, al_walk_next(&walk)) {
    count += is_true(mask, walk.offsets[1]);
  }
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, 1, &count));
  AL_TRY(al_apart(call, 0, self, out));
  AL_TRY(al_apart(call, 1, mask, out));
  /* The walk is at its beginning again. */
  for (uint32_t k = 0; k < numel; k++, al_walk_next(&walk)) {
    if (!is_true(mask, walk.offsets[1])) continue;
    al_put(out->data, (uint32_t)to++, self->data, (uint32_t)walk.offsets[0], element);
  }
  return AL_OK;
}

AL_KERNEL(aten_masked_scatter_out, "aten::masked_scatter.out") {
  const al_tensor *self = al_tensor_arg(call, 0), *mask = al_tensor_arg(call, 1), *source = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  al_walk walk, from;
  uint32_t numel, element = al_dtype_size((al_dtype)out->dtype), rest = al_numel(source);
  AL_TRY(walk_mask(call, &walk, self, mask, &numel));
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_same_dtype(call, 2, source, out));
  AL_TRY(al_resize(call, out, walk.rank, walk.sizes));
  bool in_place = self->data == out->data && al_same_layout(self, out);
  if (!in_place) AL_TRY(al_apart(call, 0, self, out));
  AL_TRY(al_apart(call, 1, mask, out));
  AL_TRY(al_apart(call, 2, source, out));
  al_walk_operand(&walk, 2, out);
  al_walk_over(&from, source->rank, source->sizes);
  al_walk_operand(&from, 0, source);
  for (; numel; numel--, al_walk_next(&walk)) {
    if (!is_true(mask, walk.offsets[1])) {
      al_put(out->data, (uint32_t)walk.offsets[2], self->data, (uint32_t)walk.offsets[0], element);
      continue;
    }
    if (!rest--) return al_fail(call, AL_SHAPE, 2);
    al_put(out->data, (uint32_t)walk.offsets[2], source->data, (uint32_t)from.offsets[0], element);
    al_walk_next(&from);
  }
  return AL_OK;
}

/* Any bit but the sign of a float: -0.0 is zero, NaN is not. */
static bool is_nonzero(const al_tensor *tensor, int32_t offset, uint32_t element) {
  const uint8_t *bytes = (const uint8_t *)tensor->data + (size_t)offset * element;
  uint8_t any = al_is_float(tensor->dtype) ? bytes[element - 1] & 0x7f : bytes[element - 1];
  for (uint32_t k = 0; k + 1 < element; k++) any |= bytes[k];
  return any != 0;
}

AL_KERNEL(aten_nonzero_out, "aten::nonzero.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 1);
  AL_RETURN_IF_FAILED(call);
  if (out->dtype != AL_I64) return al_fail(call, AL_DTYPE, 1);
  if (self->dtype == AL_C64) return al_fail(call, AL_DTYPE, 0);
  uint32_t numel = al_numel(self), element = al_dtype_size((al_dtype)self->dtype);
  al_walk walk;
  al_walk_over(&walk, self->rank, self->sizes);
  al_walk_operand(&walk, 0, self);
  int32_t sizes[2] = {0, self->rank}, strides[AL_MAX_RANK], row = 0;
  for (uint32_t k = 0; k < numel; k++, al_walk_next(&walk)) {
    sizes[0] += is_nonzero(self, walk.offsets[0], element);
  }
  AL_TRY(al_resize(call, out, 2, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  al_strides(out, strides);
  for (uint32_t k = 0; k < numel; k++, al_walk_next(&walk)) {
    if (!is_nonzero(self, walk.offsets[0], element)) continue;
    for (int32_t d = 0; d < sizes[1]; d++) {
      al_store_int(out->data, (uint32_t)(row * strides[0] + d * strides[1]), AL_I64, walk.at[d]);
    }
    row++;
  }
  return AL_OK;
}

AL_KERNEL(aten_repeat_interleave_Tensor_out, "aten::repeat_interleave.Tensor_out") {
  const al_tensor *repeats = al_tensor_arg(call, 0);
  int64_t wanted = al_int_arg_or(call, 1, -1), total = 0;
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (!is_index(repeats)) return al_fail(call, AL_DTYPE, 0);
  if (repeats->rank != 1) return al_fail(call, AL_SHAPE, 0);
  uint32_t count = (uint32_t)repeats->sizes[0], at = 0;
  for (uint32_t k = 0; k < count; k++) {
    int64_t times = al_load_int(repeats->data, k, repeats->dtype);
    if (times < 0) return al_fail(call, AL_VALUE, 0);
    if (times > INT32_MAX || (total += times) > INT32_MAX) return al_fail(call, AL_SHAPE, 0);
  }
  if (!al_arg_is_null(call, 1) && wanted != total) return al_fail(call, AL_SHAPE, 1);
  int32_t size = (int32_t)total;
  AL_TRY(al_same_dtype(call, 0, repeats, out));
  AL_TRY(al_resize(call, out, 1, &size));
  AL_TRY(al_apart(call, 0, repeats, out));
  for (uint32_t k = 0; k < count; k++) {
    for (int64_t times = al_load_int(repeats->data, k, repeats->dtype); times > 0; times--) {
      al_store_int(out->data, at++, out->dtype, k);
    }
  }
  return AL_OK;
}

/* ------------------------------------------------------------ x[a, b, ...] */

/* One index tensor. A mask of k dimensions stands for k indices: those of its true elements. */
typedef struct picker {
  const al_tensor *tensor;
  uint32_t dim;      /* of self, the first one */
  bool is_mask;
  int32_t count;     /* true elements of a mask */
  int32_t number;    /* true element `number` of a mask is at logical position `position`; at first -1 is before it */
  uint32_t position;
} picker;

typedef struct indexing {
  picker pickers[AL_MAX_RANK];
  uint32_t count;
  uint32_t covered;              /* set of the dimensions of self that are indexed */
  int32_t shape[AL_MAX_RANK];    /* of all index tensors together */
  uint32_t rank;
  uint32_t first;                /* dimension of the result where `shape` begins */
  int32_t sizes[AL_MAX_RANK];    /* of the result */
  uint32_t result_rank;
  uint32_t rest;                 /* number of dimensions that are not indexed: */
  uint8_t rest_self[AL_MAX_RANK], rest_result[AL_MAX_RANK];
} indexing;

/* Offset of an element, whose index is broadcast to the tensor's sizes. */
static uint32_t offset_at(const al_tensor *tensor, const int32_t *at) {
  uint32_t offset = 0;
  for (uint32_t k = 0; k < tensor->rank; k++) {
    uint32_t d = tensor->dim_order[k];
    offset = offset * (uint32_t)tensor->sizes[d] + (tensor->sizes[d] == 1 ? 0 : (uint32_t)at[d]);
  }
  return offset;
}

static void position_to_index(const al_tensor *tensor, uint32_t position, int32_t *at) {
  for (uint32_t d = tensor->rank; d-- > 0;) {
    at[d] = (int32_t)(position % (uint32_t)tensor->sizes[d]);
    position /= (uint32_t)tensor->sizes[d];
  }
}

static bool mask_at(const al_tensor *mask, uint32_t position) {
  int32_t at[AL_MAX_RANK];
  position_to_index(mask, position, at);
  return is_true(mask, (int32_t)offset_at(mask, at));
}

static al_status add_mask(al_call *call, const al_tensor *self, int32_t argument, picker *p) {
  const al_tensor *mask = p->tensor;
  if (!mask->rank || memcmp(mask->sizes, self->sizes + p->dim, mask->rank * sizeof *mask->sizes)) {
    return al_fail(call, AL_SHAPE, argument);
  }
  p->is_mask = true;
  uint32_t numel = al_numel(mask);
  for (uint32_t k = 0; k < numel; k++) p->count += mask_at(mask, k);
  p->number = -1;
  p->position = UINT32_MAX;
  return AL_OK;
}

/* Reads the list of indices, which is argument 1. */
static al_status read_indices(al_call *call, const al_tensor *self, const al_tensor *out, indexing *x) {
  memset(x, 0, sizeof *x);
  uint32_t listed = al_list_size(call, 1), dim = 0;
  AL_RETURN_IF_FAILED(call);
  for (uint32_t k = 0; k < listed; k++) {
    const al_tensor *index = al_tensor_item(call, 1, k);
    AL_RETURN_IF_FAILED(call);
    bool is_mask = index && (index->dtype == AL_BOOL || index->dtype == AL_U8);
    uint32_t dims = is_mask ? index->rank : 1u;
    if (dim + dims > self->rank) return al_fail(call, AL_SHAPE, 1);
    if (index) {
      if (!is_mask && !is_index(index)) return al_fail(call, AL_DTYPE, 1);
      AL_TRY(al_apart(call, 1, index, out));
      if (x->count == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 1);
      picker *p = &x->pickers[x->count++];
      p->tensor = index;
      p->dim = dim;
      if (is_mask) AL_TRY(add_mask(call, self, 1, p));
      const int32_t *sizes = is_mask ? &p->count : index->sizes;
      if (!al_broadcast(x->shape, &x->rank, sizes, is_mask ? 1u : index->rank)) return al_fail(call, AL_SHAPE, 1);
      x->covered |= ((1u << dims) - 1) << dim;
    }
    dim += dims;
  }
  return x->count ? AL_OK : al_fail(call, AL_VALUE, 1);
}

static void add_rest(indexing *x, const al_tensor *self, uint32_t dim) {
  if (x->covered >> dim & 1) return;
  x->rest_self[x->rest] = (uint8_t)dim;
  x->rest_result[x->rest++] = (uint8_t)x->result_rank;
  x->sizes[x->result_rank++] = self->sizes[dim];
}

/* The indexed dimensions are replaced by `shape` where they were if they stand together, and come first otherwise. */
static al_status plan_result(al_call *call, const al_tensor *self, indexing *x) {
  uint32_t covered = x->covered, lowest = covered & (0u - covered), rest = 0, dim = 0;
  bool no_shape = false, no_dim = false;
  for (uint32_t d = 0; d < x->rank; d++) no_shape |= x->shape[d] == 0;
  for (uint32_t d = 0; d < self->rank; d++) {
    bool is_covered = covered >> d & 1;
    rest += !is_covered;
    no_dim |= is_covered && self->sizes[d] == 0;
  }
  if (no_dim && !no_shape) return al_fail(call, AL_INDEX, 1);
  if (rest + x->rank > AL_MAX_RANK) return al_fail(call, AL_SHAPE, 1);
  if (!(covered & (covered + lowest))) {
    for (; !(covered >> dim & 1); dim++) add_rest(x, self, dim);
  }
  x->first = x->result_rank;
  memcpy(x->sizes + x->first, x->shape, x->rank * sizeof *x->shape);
  x->result_rank += x->rank;
  for (; dim < self->rank; dim++) add_rest(x, self, dim);
  return AL_OK;
}

static al_status read_indexing(al_call *call, const al_tensor *self, const al_tensor *out, indexing *x) {
  AL_TRY(read_indices(call, self, out, x));
  return plan_result(call, self, x);
}

/* Moves a mask's picker to true element `number`; fast if the numbers ascend. */
static void find_true(picker *p, int32_t number) {
  if (number < p->number) {
    p->number = -1;
    p->position = UINT32_MAX;
  }
  while (p->number < number) p->number += mask_at(p->tensor, ++p->position);
}

/* Adds what a picker says for the element `at` of `shape` to the offset in self; false if out of range. */
static bool pick(picker *p, const int32_t *at, uint32_t rank, const al_view *self, ptrdiff_t *offset) {
  int32_t found[AL_MAX_RANK];
  uint32_t dims = 1;
  if (p->is_mask) {
    find_true(p, p->count == 1 ? 0 : at[rank - 1]);
    position_to_index(p->tensor, p->position, found);
    dims = p->tensor->rank;
  } else {
    uint32_t element = offset_at(p->tensor, at + rank - p->tensor->rank);
    int64_t size = self->sizes[p->dim], value = al_load_int(p->tensor->data, element, p->tensor->dtype);
    if (value < -size || value >= size) return false;
    found[0] = (int32_t)(value < 0 ? value + size : value);
  }
  for (uint32_t d = 0; d < dims; d++) *offset += (ptrdiff_t)found[d] * self->strides[p->dim + d];
  return true;
}

/* Not part of `apply`, for the sake of its stack frame. */
__attribute__((noinline)) static void add_strided(const al_view *to, const al_view *from, uint8_t dtype) {
  al_walk walk;
  al_walk_over(&walk, to->rank, to->sizes);
  uint32_t numel = 1;
  for (uint32_t d = 0; d < to->rank; d++) {
    walk.strides[0][d] = to->strides[d];
    walk.strides[1][d] = from->strides[d];
    numel *= (uint32_t)to->sizes[d];
  }
  for (; numel; numel--, al_walk_next(&walk)) {
    al_add_element(to->data, (uint32_t)walk.offsets[0], from->data, (uint32_t)walk.offsets[1], dtype);
  }
}

typedef enum action { GET, PUT, ADD } action;

/* Moves all blocks of elements between `self` and `other`, which has the sizes and dimensions of the result. */
static al_status apply(al_call *call, indexing *x, const al_view *self, const al_view *other, action action,
                       uint8_t dtype) {
  uint32_t numel = 1;
  for (uint32_t d = 0; d < x->result_rank; d++) {
    if (x->sizes[d] == 0) return AL_OK;
  }
  al_view block = {.element = self->element, .rank = x->rest}, outer = block;
  for (uint32_t k = 0; k < x->rest; k++) {
    block.sizes[k] = outer.sizes[k] = self->sizes[x->rest_self[k]];
    block.strides[k] = self->strides[x->rest_self[k]];
    outer.strides[k] = other->strides[x->rest_result[k]];
  }
  al_walk walk;
  al_walk_over(&walk, x->rank, x->shape);
  for (uint32_t d = 0; d < x->rank; d++) {
    walk.strides[0][d] = other->strides[x->first + d];
    numel *= (uint32_t)x->shape[d];
  }
  for (; numel; numel--, al_walk_next(&walk)) {
    ptrdiff_t offset = 0;
    for (uint32_t k = 0; k < x->count; k++) {
      if (!pick(&x->pickers[k], walk.at, x->rank, self, &offset)) return al_fail(call, AL_INDEX, 1);
    }
    block.data = self->data + offset * (ptrdiff_t)self->element;
    outer.data = other->data + walk.offsets[0] * (ptrdiff_t)self->element;
    if (action == GET) al_copy_strided(&outer, &block);
    else if (action == PUT) al_copy_strided(&block, &outer);
    else add_strided(&block, &outer, dtype);
  }
  return AL_OK;
}

AL_KERNEL(aten_index_Tensor_out, "aten::index.Tensor_out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  indexing x;
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(read_indexing(call, self, out, &x));
  AL_TRY(al_resize(call, out, x.result_rank, x.sizes));
  AL_TRY(al_apart(call, 0, self, out));
  al_view from, to;
  al_view_of(&from, self);
  al_view_of(&to, out);
  return apply(call, &x, &from, &to, GET, out->dtype);
}

/* out is a copy of self already, or self itself. */
static al_status put(al_call *call, al_tensor *out) {
  const al_tensor *values = al_tensor_arg(call, 2);
  bool add = al_bool_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  indexing x;
  AL_TRY(al_same_dtype(call, 2, values, out));
  if (add && !al_computes(out->dtype)) return al_fail(call, AL_DTYPE, 2);
  AL_TRY(read_indexing(call, out, out, &x));
  AL_TRY(al_apart(call, 2, values, out));
  if (values->rank > x.result_rank) return al_fail(call, AL_SHAPE, 2);
  uint32_t lead = x.result_rank - values->rank;
  al_view to, from = {.data = values->data, .element = al_dtype_size((al_dtype)out->dtype)};
  int32_t strides[AL_MAX_RANK];
  al_strides(values, strides);
  for (uint32_t d = 0; d < values->rank; d++) {
    bool one = values->sizes[d] == 1;
    if (!one && values->sizes[d] != x.sizes[lead + d]) return al_fail(call, AL_SHAPE, 2);
    from.strides[lead + d] = one ? 0 : strides[d];
  }
  al_view_of(&to, out);
  return apply(call, &x, &to, &from, add ? ADD : PUT, out->dtype);
}

AL_KERNEL(aten_index_put_out, "aten::index_put.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(al_start_from(call, self, out));
  return put(call, out);
}

AL_KERNEL(aten_index_put_, "aten::index_put_") {
  al_tensor *self = al_out_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  return put(call, self);
}
