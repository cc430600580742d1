/* Padding with a constant, by reflection and by replication. */
#include "move.h"

/* Negative amounts cut off. */
AL_KERNEL(aten_constant_pad_nd_out, "aten::constant_pad_nd.out") {
  const al_tensor *self = al_tensor_arg(call, 0);
  uint32_t count = al_list_size(call, 1);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  uint8_t value[8];
  if (count % 2 || count / 2 > self->rank) return al_fail(call, AL_SHAPE, 1);
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_scalar_element(call, 2, out->dtype, value));
  int32_t sizes[AL_MAX_RANK], before[AL_MAX_RANK] = {0};
  al_view from, to;
  al_view_of(&from, self);
  memcpy(sizes, self->sizes, self->rank * sizeof *sizes);
  bool empty = false;
  for (uint32_t k = 0; k < count / 2; k++) {
    uint32_t d = self->rank - 1u - k;
    int64_t left = al_int_item(call, 1, 2 * k), right = al_int_item(call, 1, 2 * k + 1), size = sizes[d];
    AL_RETURN_IF_FAILED(call);
    if (left > INT32_MAX || left < -size || right > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
    int64_t kept = size + (left < 0 ? left : 0);
    if (right < -kept) return al_fail(call, AL_SHAPE, 1);
    kept += right < 0 ? right : 0;
    if (size + left + right > INT32_MAX) return al_fail(call, AL_SHAPE, 1);
    sizes[d] = (int32_t)(size + left + right);
    from.sizes[d] = (int32_t)kept;
    before[d] = (int32_t)left;
    empty |= kept == 0;
  }
  AL_TRY(al_resize(call, out, self->rank, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  al_fill(out->data, al_numel(out), from.element, value);
  if (empty) return AL_OK;
  al_view_of(&to, out);
  for (uint32_t d = 0; d < to.rank; d++) {
    if (before[d] < 0) al_view_advance(&from, d, -before[d]);
    else al_view_advance(&to, d, before[d]);
    to.sizes[d] = from.sizes[d];
  }
  al_copy_strided(&to, &from);
  return AL_OK;
}

/* One padded dimension: index j of the result is made of index j - left of self, brought back into range. */
typedef struct padding {
  int32_t size, left, out_size;
  int32_t lead;   /* results before the part where both run in parallel */
  int32_t middle; /* length of that part */
} padding;

static int32_t source_of(const padding *p, int32_t j, bool reflect) {
  int32_t i = j - p->left;
  if (i >= 0 && i < p->size) return i;
  if (!reflect) return i < 0 ? 0 : p->size - 1;
  return i < 0 ? -i : 2 * (p->size - 1) - i;
}

static int32_t smaller(int32_t a, int32_t b) {
  return a < b ? a : b;
}

/* Arguments 2 k and 2 k + 1 of the list are for dimension `rank - 1 - k`. */
static al_status read_padding(al_call *call, uint32_t k, int32_t size, bool reflect, padding *p) {
  int64_t left = al_int_item(call, 1, 2 * k), right = al_int_item(call, 1, 2 * k + 1);
  AL_RETURN_IF_FAILED(call);
  int64_t limit = reflect ? size : INT32_MAX / 4;
  if (left >= limit || right >= limit || left < -(INT32_MAX / 4) || right < -(INT32_MAX / 4)) {
    return al_fail(call, AL_SHAPE, 1);
  }
  int64_t out_size = size + left + right;
  if (out_size < 1 || out_size > INT32_MAX / 2 || size > INT32_MAX / 4) return al_fail(call, AL_SHAPE, 1);
  p->size = size;
  p->left = (int32_t)left;
  p->out_size = (int32_t)out_size;
  p->lead = smaller(left > 0 ? p->left : 0, p->out_size);
  int32_t begin = left < 0 ? -p->left : 0;
  p->middle = begin < size ? smaller(size - begin, p->out_size - p->lead) : 0;
  return AL_OK;
}

/* Each padded dimension is the middle, as one part, and single slices around it; all combinations are copied. */
static al_status pad(al_call *call, uint32_t dims, bool reflect) {
  const al_tensor *self = al_tensor_arg(call, 0);
  uint32_t count = al_list_size(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  if (self->rank != dims + 1 && self->rank != dims + 2) return al_fail(call, AL_SHAPE, 0);
  if (count != 2 * dims) return al_fail(call, AL_SHAPE, 1);
  int32_t sizes[AL_MAX_RANK];
  padding paddings[3];
  memcpy(sizes, self->sizes, self->rank * sizeof *sizes);
  for (uint32_t d = self->rank - dims - 1; d < self->rank; d++) {
    if (sizes[d] == 0) return al_fail(call, AL_SHAPE, 0);
  }
  for (uint32_t k = 0; k < dims; k++) {
    int32_t *size = &sizes[self->rank - 1u - k];
    AL_TRY(read_padding(call, k, *size, reflect, &paddings[k]));
    *size = paddings[k].out_size;
  }
  AL_TRY(al_same_dtype(call, 0, self, out));
  AL_TRY(al_resize(call, out, self->rank, sizes));
  AL_TRY(al_apart(call, 0, self, out));
  if (!al_numel(out)) return AL_OK;
  al_view whole_from, whole_to;
  al_view_of(&whole_from, self);
  al_view_of(&whole_to, out);
  int32_t at[3] = {0}; /* results that are done, for each dimension */
  for (;;) {
    al_view from = whole_from, to = whole_to;
    int32_t sizes_now[3];
    for (uint32_t k = 0; k < dims; k++) {
      const padding *p = &paddings[k];
      uint32_t d = self->rank - 1u - k;
      sizes_now[k] = at[k] == p->lead && p->middle ? p->middle : 1;
      al_view_advance(&to, d, at[k]);
      al_view_advance(&from, d, source_of(p, at[k], reflect));
      from.sizes[d] = to.sizes[d] = sizes_now[k];
    }
    al_copy_strided(&to, &from);
    uint32_t k = 0;
    for (; k < dims; k++) {
      at[k] += sizes_now[k];
      if (at[k] < paddings[k].out_size) break;
      at[k] = 0;
    }
    if (k == dims) return AL_OK;
  }
}

AL_KERNEL(aten_reflection_pad1d_out, "aten::reflection_pad1d.out") {
  return pad(call, 1, true);
}

AL_KERNEL(aten_reflection_pad2d_out, "aten::reflection_pad2d.out") {
  return pad(call, 2, true);
}

AL_KERNEL(aten_reflection_pad3d_out, "aten::reflection_pad3d.out") {
  return pad(call, 3, true);
}

AL_KERNEL(aten_replication_pad1d_out, "aten::replication_pad1d.out") {
  return pad(call, 1, false);
}

AL_KERNEL(aten_replication_pad2d_out, "aten::replication_pad2d.out") {
  return pad(call, 2, false);
}

AL_KERNEL(aten_replication_pad3d_out, "aten::replication_pad3d.out") {
  return pad(call, 3, false);
}
