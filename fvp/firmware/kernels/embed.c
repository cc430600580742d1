/* Rows of tables of 8, 4 and 2 bit weights by index, dequantized group by group. */
#include "move.h"

typedef struct table {
  const al_tensor *weight, *scales, *zero_points;
  uint32_t bits;   /* of a weight */
  uint32_t width;  /* weights of a row */
  uint32_t groups; /* of a row, each with its own scale */
} table;

static bool is_float_table(uint8_t dtype) {
  return dtype == AL_F32 || dtype == AL_F16 || dtype == AL_BF16;
}

static float load(const al_tensor *tensor, uint32_t index) {
  uint16_t half;
  if (tensor->dtype == AL_F32) return al_load_float(tensor->data, index, AL_F32);
  memcpy(&half, (const uint8_t *)tensor->data + 2 * (size_t)index, sizeof half);
  if (tensor->dtype == AL_F16) return al_half_value(half);
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void store(void *data, uint32_t index, uint8_t dtype, float value) {
  if (dtype == AL_F32) {
    al_store_float(data, index, AL_F32, value);
    return;
  }
  uint16_t half = dtype == AL_F16 ? al_half_bits(value) : al_bfloat_bits(value);
  memcpy((uint8_t *)data + 2 * (size_t)index, &half, sizeof half);
}

static float rounded(float value, uint8_t dtype) {
  if (dtype == AL_F32) return value;
  if (dtype == AL_F16) return al_half_value(al_half_bits(value));
  uint32_t bits = (uint32_t)al_bfloat_bits(value) << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Four bits: the first weight of two is the high half. Two bits: the first of four is the lowest quarter. */
static int32_t weight_at(const table *t, uint32_t row, uint32_t column) {
  const uint8_t *data = t->weight->data;
  uint32_t at = row * (uint32_t)t->weight->sizes[1] + column * t->bits / 8;
  if (t->bits == 8) return t->weight->dtype == AL_I8 ? (int8_t)data[at] : data[at];
  if (t->bits == 4) return (data[at] >> (column % 2 ? 0 : 4) & 15) - 8;
  return (data[at] >> 2 * (column % 4) & 3) - 2;
}

/* Scales and zero points: one a row, or one for each group of a row. */
static al_status check_groups(al_call *call, const al_tensor *tensor, int32_t argument, const table *t,
                              uint32_t *groups) {
  if (!is_float_table(tensor->dtype)) return al_fail(call, AL_DTYPE, argument);
  if (!al_is_contiguous(tensor) || tensor->rank < 1 || tensor->rank > 2) return al_fail(call, AL_SHAPE, argument);
  if (tensor->sizes[0] != t->weight->sizes[0]) return al_fail(call, AL_SHAPE, argument);
  *groups = tensor->rank == 2 ? (uint32_t)tensor->sizes[1] : 1;
  return *groups == 0 || t->width % *groups ? al_fail(call, AL_SHAPE, argument) : AL_OK;
}

static al_status read_table(al_call *call, uint32_t bits, table *t) {
  t->weight = al_tensor_arg(call, 0);
  t->scales = al_tensor_arg(call, 1);
  t->zero_points = al_optional_tensor_arg(call, 2);
  t->bits = bits;
  int64_t low = al_int_arg(call, 3), high = al_int_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  if (t->weight->dtype != AL_U8 && t->weight->dtype != AL_I8) return al_fail(call, AL_DTYPE, 0);
  if (t->weight->rank != 2 || !al_is_contiguous(t->weight)) return al_fail(call, AL_SHAPE, 0);
  if (bits < 8 && (low != -(1 << (bits - 1)) || high != (1 << (bits - 1)) - 1)) return al_fail(call, AL_VALUE, 3);
  if (t->weight->sizes[1] > (int32_t)(INT32_MAX / (8 / bits))) return al_fail(call, AL_SHAPE, 0);
  t->width = (uint32_t)t->weight->sizes[1] * (8 / bits);
  AL_TRY(check_groups(call, t->scales, 1, t, &t->groups));
  if (!t->zero_points) return AL_OK;
  uint32_t groups;
  AL_TRY(check_groups(call, t->zero_points, 2, t, &groups));
  if (groups != t->groups) return al_fail(call, AL_SHAPE, 2);
  return t->zero_points->dtype != t->scales->dtype ? al_fail(call, AL_DTYPE, 2) : AL_OK;
}

/* Results are rounded to the type of the scales after each step, as torch does, and then to that of out. */
static void dequantize_row(const table *t, uint32_t row, al_tensor *out, uint32_t to, int32_t stride) {
  uint8_t dtype = t->scales->dtype;
  uint32_t group_size = t->width / t->groups;
  for (uint32_t column = 0; column < t->width; column++, to += (uint32_t)stride) {
    uint32_t group = row * t->groups + column / group_size;
    float value = (float)weight_at(t, row, column);
    if (t->zero_points) value = rounded(value - load(t->zero_points, group), dtype);
    store(out->data, to, out->dtype, rounded(value * load(t->scales, group), dtype));
  }
}

/* `dtype_arg` 0: there is none, results have the type of the scales. */
static al_status embedding(al_call *call, uint32_t bits, uint32_t dtype_arg) {
  table t;
  AL_TRY(read_table(call, bits, &t));
  const al_tensor *indices = al_tensor_arg(call, 5);
  int64_t dtype = dtype_arg ? al_int_arg_or(call, dtype_arg, t.scales->dtype) : t.scales->dtype;
  al_tensor *out = al_out_arg(call, dtype_arg ? 7 : 6);
  AL_RETURN_IF_FAILED(call);
  if (out->dtype != dtype || !is_float_table(out->dtype)) return al_fail(call, AL_DTYPE, dtype_arg ? 7 : 6);
  if (indices->dtype != AL_I64 && indices->dtype != AL_I32) return al_fail(call, AL_DTYPE, 5);
  if (indices->rank == AL_MAX_RANK) return al_fail(call, AL_SHAPE, 5);
  int32_t sizes[AL_MAX_RANK];
  memcpy(sizes, indices->sizes, indices->rank * sizeof *sizes);
  sizes[indices->rank] = (int32_t)t.width;
  AL_TRY(al_resize(call, out, indices->rank + 1u, sizes));
  AL_TRY(al_apart(call, 0, t.weight, out));
  AL_TRY(al_apart(call, 1, t.scales, out));
  if (t.zero_points) AL_TRY(al_apart(call, 2, t.zero_points, out));
  AL_TRY(al_apart(call, 5, indices, out));
  al_walk walk;
  al_walk_over(&walk, indices->rank, sizes);
  al_walk_operand(&walk, 0, indices);
  al_strides(out, walk.strides[1]);
  for (uint32_t numel = al_numel(indices); numel; numel--, al_walk_next(&walk)) {
    int64_t row = al_load_int(indices->data, (uint32_t)walk.offsets[0], indices->dtype);
    if (row < 0 || row >= t.weight->sizes[0]) return al_fail(call, AL_INDEX, 5);
    dequantize_row(&t, (uint32_t)row, out, (uint32_t)walk.offsets[1], walk.strides[1][indices->rank]);
  }
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_embedding_byte_out, "quantized_decomposed::embedding_byte.out") {
  return embedding(call, 8, 0);
}

AL_KERNEL(quantized_decomposed_embedding_byte_dtype_out, "quantized_decomposed::embedding_byte.dtype_out") {
  return embedding(call, 8, 6);
}

AL_KERNEL(quantized_decomposed_embedding_4bit_out, "quantized_decomposed::embedding_4bit.out") {
  return embedding(call, 4, 0);
}

AL_KERNEL(quantized_decomposed_embedding_4bit_dtype_out, "quantized_decomposed::embedding_4bit.dtype_out") {
  return embedding(call, 4, 6);
}

AL_KERNEL(quantized_decomposed_embedding_2bit_out, "quantized_decomposed::embedding_2bit.out") {
  return embedding(call, 2, 0);
}

AL_KERNEL(quantized_decomposed_embedding_2bit_dtype_out, "quantized_decomposed::embedding_2bit.dtype_out") {
  return embedding(call, 2, 6);
}
