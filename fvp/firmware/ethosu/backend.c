/* "EthosUBackend": the delegate's data is a "vela bin stream" (see arm_lower/pte/ethosu_blob.py).
 *
 * Blocks, each: 16 bytes name, u32 size, u8 1 if the data is elsewhere, 11 zero bytes, data, zeros to a multiple of
 * 16. Inputs and outputs are tables: i32 count, then 9 x i32 each: 6 sizes, bytes of an element, offset, region.
 */
#include "al_kernel.h"
#include "ethosu.h"

#include <string.h>

enum { FIRST, COMMANDS, WEIGHTS, SCRATCH, INPUTS, OUTPUTS, LAST, BLOCKS };
enum { HEADER_BYTES = 32, SIZES = 6, ELEMENT_BYTES = 6, OFFSET, REGION, ROW_WORDS, SCRATCH_REGION = 1 };

static const char block_names[BLOCKS][16] = {"vela_bin_stream", "cmd_data", "weight_data",    "scratch_size",
                                             "inputs",          "outputs",  "vela_end_stream"};

typedef struct table {
  const int32_t *rows;
  uint32_t count;
} table;

typedef struct blob {
  const uint8_t *data[BLOCKS];
  uint32_t bytes[BLOCKS];
  uint32_t scratch;
  table inputs, outputs;
} blob;

static uint32_t load32(const uint8_t *data) {
  uint32_t value;
  memcpy(&value, data, sizeof value);
  return value;
}

static int block_number(const uint8_t *name) {
  int k = 0;
  while (k < BLOCKS && memcmp(name, block_names[k], sizeof block_names[k]) != 0) k++;
  return k;
}

static al_status parse_blocks(const uint8_t *data, uint32_t size, blob *b) {
  if ((uintptr_t)data % AL_ALIGNMENT || size % AL_ALIGNMENT) return AL_DELEGATE_CORRUPT;
  for (uint32_t at = 0; at < size;) {
    const uint8_t *header = data + at;
    if (size - at < HEADER_BYTES) return AL_DELEGATE_CORRUPT;
    int k = block_number(header);
    if (k == BLOCKS || b->data[k] || b->data[LAST] || (k == FIRST) != (at == 0)) return AL_DELEGATE_CORRUPT;
    for (uint32_t i = 21; i < HEADER_BYTES; i++)
      if (header[i]) return AL_DELEGATE_CORRUPT;
    if (header[20]) return header[20] == 1 ? AL_FILE_UNSUPPORTED : AL_DELEGATE_CORRUPT;
    uint32_t bytes = load32(header + 16);
    at += HEADER_BYTES;
    if (bytes > size - at) return AL_DELEGATE_CORRUPT;
    b->data[k] = data + at;
    b->bytes[k] = bytes;
    at += (bytes + 15) & ~15u; /* size is a multiple of 16, so this does not pass it */
  }
  for (int k = 0; k < BLOCKS; k++)
    if (!b->data[k] && k != WEIGHTS) return AL_DELEGATE_CORRUPT;
  return b->bytes[FIRST] || b->bytes[LAST] || b->bytes[SCRATCH] != 4 ? AL_DELEGATE_CORRUPT : AL_OK;
}

static uint32_t row_bytes(const int32_t *row) {
  uint32_t bytes = (uint32_t)row[ELEMENT_BYTES];
  for (int i = 0; i < SIZES; i++) bytes *= (uint32_t)row[i];
  return bytes;
}

/* All of the row's bytes are inside of the scratch memory, so row_bytes does not overflow. */
static bool row_fits(const int32_t *row, uint32_t scratch) {
  uint64_t bytes = (uint32_t)row[ELEMENT_BYTES];
  if (bytes != 1 && bytes != 2 && bytes != 4) return false;
  for (int i = 0; i < SIZES; i++) {
    if (row[i] < 1) return false;
    bytes *= (uint32_t)row[i];
    if (bytes > scratch) return false;
  }
  return row[REGION] == SCRATCH_REGION && row[OFFSET] >= 0 && (uint32_t)row[OFFSET] + bytes <= scratch;
}

static al_status parse_table(const blob *b, int k, table *t) {
  uint32_t words = b->bytes[k] / 4;
  if (b->bytes[k] % 4 || words < 1) return AL_DELEGATE_CORRUPT;
  t->count = load32(b->data[k]);
  if (t->count != (words - 1) / ROW_WORDS || (words - 1) % ROW_WORDS) return AL_DELEGATE_CORRUPT;
  t->rows = (const int32_t *)(const void *)(b->data[k] + 4);
  for (uint32_t i = 0; i < t->count; i++)
    if (!row_fits(t->rows + ROW_WORDS * i, b->scratch)) return AL_DELEGATE_CORRUPT;
  return AL_OK;
}

static al_status parse(const void *data, uint32_t size, blob *b, al_ethosu_payload *payload) {
  memset(b, 0, sizeof *b);
  AL_TRY(parse_blocks(data, size, b));
  b->scratch = load32(b->data[SCRATCH]);
  AL_TRY(parse_table(b, INPUTS, &b->inputs));
  AL_TRY(parse_table(b, OUTPUTS, &b->outputs));
  return al_ethosu_parse(b->data[COMMANDS], b->bytes[COMMANDS], payload);
}

static al_status check(void *state, const void *data, uint32_t size, uint32_t *scratch) {
  (void)state;
  blob b;
  al_ethosu_payload payload;
  AL_TRY(parse(data, size, &b, &payload));
  *scratch = b.scratch;
  return AL_OK;
}

/* The NPU knows integers only. */
static bool is_npu_dtype(uint8_t dtype) {
  return dtype == AL_I8 || dtype == AL_U8 || dtype == AL_I16 || dtype == AL_I32 || dtype == AL_BOOL;
}

/* Argument i as the table describes it, NULL if it is not so. */
static const al_tensor *argument(al_call *call, const blob *b, uint32_t i, const int32_t **row) {
  bool output = i >= b->inputs.count;
  const al_tensor *tensor = output ? al_out_arg(call, i) : al_tensor_arg(call, i);
  *row = output ? b->outputs.rows + ROW_WORDS * (i - b->inputs.count) : b->inputs.rows + ROW_WORDS * i;
  if (!tensor) return NULL;
  uint32_t bytes = row_bytes(*row);
  if (!is_npu_dtype(tensor->dtype) || al_dtype_size((al_dtype)tensor->dtype) != (uint32_t)(*row)[ELEMENT_BYTES])
    al_fail(call, AL_DELEGATE_ARGUMENTS, (int32_t)i);
  else if (al_nbytes(tensor) != bytes)
    al_fail_size(call, AL_DELEGATE_ARGUMENTS, (int32_t)i, bytes, al_nbytes(tensor));
  return call->status ? NULL : tensor;
}

static al_status run(void *state, const void *data, uint32_t size, al_call *call) {
  al_ethosu *ethosu = state;
  blob b;
  al_ethosu_payload payload;
  al_status status = parse(data, size, &b, &payload);
  if (status) return al_fail(call, status, -1);
  uint32_t count = b.inputs.count + b.outputs.count;
  if (call->arg_count != count) return al_fail_size(call, AL_DELEGATE_ARGUMENTS, -1, count, call->arg_count);
  if (call->scratch.size < b.scratch)
    return al_fail_size(call, AL_SCRATCH_TOO_SMALL, -1, b.scratch, call->scratch.size);
  /* The file does not say how much is enough. */
  if (payload.regions & 4 && !call->fast_scratch.size)
    return al_fail_size(call, AL_FAST_SCRATCH_TOO_SMALL, -1, AL_ALIGNMENT, 0);
  if ((uintptr_t)call->scratch.data % AL_ALIGNMENT || (uintptr_t)call->fast_scratch.data % AL_ALIGNMENT)
    return al_fail(call, AL_MEMORY_MISALIGNED, -1);

  const int32_t *row;
  for (uint32_t i = 0; i < count; i++)
    if (!argument(call, &b, i, &row)) return call->status;
  uint8_t *scratch = call->scratch.data;
  for (uint32_t i = 0; i < b.inputs.count; i++) {
    const void *in = argument(call, &b, i, &row)->data;
    memcpy(scratch + row[OFFSET], in, row_bytes(row));
  }

  al_ethosu_job job = {
      b.data[COMMANDS], b.bytes[COMMANDS], b.data[WEIGHTS],         b.bytes[WEIGHTS],
      scratch,          b.scratch,         call->fast_scratch.data, call->fast_scratch.size,
  };
  ethosu->text[0] = 0;
  status = ethosu->npu.run(ethosu->npu.state, &job, ethosu->text, sizeof ethosu->text);
  if (status) {
    al_fail(call, status, -1);
    if (call->error && ethosu->text[0]) {
      call->error->name = ethosu->text;
      call->error->name_size = (uint32_t)strlen(ethosu->text);
    }
    return status;
  }
  for (uint32_t i = b.inputs.count; i < count; i++) {
    void *out = argument(call, &b, i, &row)->data;
    memcpy(out, scratch + row[OFFSET], row_bytes(row));
  }
  return AL_OK;
}

al_backend al_ethosu_backend(al_ethosu *state, al_npu npu) {
  state->npu = npu;
  return (al_backend){"EthosUBackend", state, check, run};
}
