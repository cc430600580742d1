/* Selection by order. */
#include "move.h"

/* A line of elements. NaN is greater than all numbers, as in torch. */
static bool comes_before(const void *a, uint32_t a_index, const void *b, uint32_t b_index, uint8_t dtype,
                         bool largest) {
  if (al_is_float(dtype)) {
    float x = al_load_float(a, a_index, dtype), y = al_load_float(b, b_index, dtype);
    bool x_nan = x != x, y_nan = y != y;
    if (largest) return (x_nan && !y_nan) || x > y;
    return (y_nan && !x_nan) || x < y;
  }
  int64_t x = al_load_int(a, a_index, dtype), y = al_load_int(b, b_index, dtype);
  return largest ? x > y : x < y;
}

typedef struct line {
  void *data;
  int32_t offset, stride;
} line;

static uint32_t place(const line *l, int32_t i) {
  return (uint32_t)(l->offset + i * l->stride);
}

/* Keeps the best k elements that were seen in order, at the place where they are wanted; equal ones stay in the order
 * of their indices. */
static void select_best(const line *self, int32_t size, const line *values, const line *indices, int32_t k,
                        uint8_t dtype, bool largest) {
  uint32_t element = al_dtype_size((al_dtype)dtype);
  for (int32_t i = 0; i < size; i++) {
    int32_t at = i < k ? i : k;
    while (at > 0 && comes_before(self->data, place(self, i), values->data, place(values, at - 1), dtype, largest)) {
      at--;
      if (at + 1 == k) continue; /* the last one falls out */
      al_put(values->data, place(values, at + 1), values->data, place(values, at), element);
      al_put(indices->data, place(indices, at + 1), indices->data, place(indices, at), 8);
    }
    if (at == k) continue;
    al_put(values->data, place(values, at), self->data, place(self, i), element);
    al_store_int(indices->data, place(indices, at), AL_I64, i);
  }
}

/* Results are always sorted; torch leaves the order open if `sorted` is false, and that of equal elements always. */
AL_KERNEL(aten_topk_values, "aten::topk.values") {
  const al_tensor *self = al_tensor_arg(call, 0);
  int64_t k = al_int_arg(call, 1);
  bool largest = al_bool_arg(call, 3);
  al_tensor *values = al_out_arg(call, 5), *indices = al_out_arg(call, 6);
  uint32_t dim;
  AL_TRY(al_dim_arg(call, 2, self ? self->rank : 0, &dim));
  AL_RETURN_IF_FAILED(call);
  if (!al_computes(self->dtype) || self->dtype == AL_BOOL) return al_fail(call, AL_DTYPE, 0);
  if (indices->dtype != AL_I64) return al_fail(call, AL_DTYPE, 6);
  AL_TRY(al_same_dtype(call, 0, self, values));
  int32_t size = self->rank ? self->sizes[dim] : 1, sizes[AL_MAX_RANK];
  if (k < 0 || k > size) return al_fail(call, AL_INDEX, 1);
  memcpy(sizes, self->sizes, self->rank * sizeof *sizes);
  if (self->rank) sizes[dim] = (int32_t)k;
  else k = 1; /* torch: also for k = 0 */
  AL_TRY(al_resize(call, values, self->rank, sizes));
  AL_TRY(al_resize(call, indices, self->rank, sizes));
  AL_TRY(al_apart(call, 0, self, values));
  AL_TRY(al_apart(call, 0, self, indices));
  AL_TRY(al_apart(call, 5, values, indices));
  if (!al_numel(values)) return AL_OK;
  if (self->rank) sizes[dim] = 1;
  al_walk walk;
  al_walk_over(&walk, self->rank, sizes);
  al_strides(self, walk.strides[0]);
  al_strides(values, walk.strides[1]);
  al_strides(indices, walk.strides[2]);
  line from = {.data = self->data}, to = {.data = values->data}, chosen = {.data = indices->data};
  uint32_t lines = 1;
  for (uint32_t d = 0; d < self->rank; d++) lines *= (uint32_t)sizes[d];
  if (self->rank) {
    from.stride = walk.strides[0][dim];
    to.stride = walk.strides[1][dim];
    chosen.stride = walk.strides[2][dim];
  }
  for (; lines; lines--, al_walk_next(&walk)) {
    from.offset = walk.offsets[0];
    to.offset = walk.offsets[1];
    chosen.offset = walk.offsets[2];
    select_best(&from, size, &to, &chosen, (int32_t)k, self->dtype, largest);
  }
  return AL_OK;
}
