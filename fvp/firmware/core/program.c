/* Opens a file and checks all of it, so that nothing has to be checked again when a method is built or executed.
 *
 * First the encoding (every table, vector and string lies inside of the FlatBuffer and is aligned), driven by a table
 * of the schema; then the meaning (every index, size and offset).
 */
#include "core.h"

#define HEADER_AT 8u
#define SMALLEST_FILE 64u /* ExecuTorch's loader wants as much */
#define VISITS_PER_BYTE 16u

/* Kinds of fields. A table's number is added to A_TABLE or TABLES. */
enum { SKIP, BYTE, WORD, LONG, BYTES, WORDS, LONGS, VALUE, INSTRUCTION, A_TABLE = 16, TABLES = 56, REQUIRED = 128 };

enum { PROGRAM, PLAN, CONTAINER, EVALUE, NONE, INT, BOOLEAN, DOUBLE, TENSOR, STRING, INT_LIST, DOUBLE_LIST, BOOL_LIST,
       TENSOR_LIST, OPTIONAL_TENSOR_LIST, ALLOCATION, EXTRA, CHAIN, AN_INSTRUCTION, KERNEL_CALL, DELEGATE_CALL, MOVE,
       JUMP, FREE, OPERATOR, DELEGATE, REFERENCE, COMPILE_SPEC, INLINE_DATA, BUFFER, SEGMENT, PARTS, NAMED_DATA };

#define MUST(kind) ((kind) | REQUIRED)
static const struct {
  const char *name;
  uint8_t fields[10];
} schema[] = {
  [PROGRAM] = {"Program", {WORD, MUST(TABLES + PLAN), TABLES + BUFFER, TABLES + INLINE_DATA, TABLES + SEGMENT,
                           A_TABLE + PARTS, TABLES + PARTS, TABLES + NAMED_DATA}},
  [PLAN] = {"ExecutionPlan", {MUST(BYTES), A_TABLE + CONTAINER, MUST(TABLES + EVALUE), MUST(WORDS), MUST(WORDS),
                              MUST(TABLES + CHAIN), MUST(TABLES + OPERATOR), MUST(TABLES + DELEGATE), MUST(LONGS)}},
  [CONTAINER] = {"ContainerMetadata", {BYTES, BYTES}},
  [EVALUE] = {"EValue", {VALUE}},
  [NONE] = {"Null", {SKIP}},
  [INT] = {"Int", {LONG}},
  [BOOLEAN] = {"Bool", {BYTE}},
  [DOUBLE] = {"Double", {LONG}},
  [TENSOR] = {"Tensor", {BYTE, WORD, MUST(WORDS), MUST(BYTES), BYTE, WORD, A_TABLE + ALLOCATION, BYTE, BYTE,
                         A_TABLE + EXTRA}},
  [STRING] = {"String", {MUST(BYTES)}},
  [INT_LIST] = {"IntList", {MUST(LONGS)}},
  [DOUBLE_LIST] = {"DoubleList", {MUST(LONGS)}},
  [BOOL_LIST] = {"BoolList", {MUST(BYTES)}},
  [TENSOR_LIST] = {"TensorList", {MUST(WORDS)}},
  [OPTIONAL_TENSOR_LIST] = {"OptionalTensorList", {MUST(WORDS)}},
  [ALLOCATION] = {"AllocationDetails", {WORD, WORD, WORD}},
  [EXTRA] = {"ExtraTensorInfo", {LONG, BYTES, BYTE}},
  [CHAIN] = {"Chain", {WORDS, WORDS, MUST(TABLES + AN_INSTRUCTION)}},
  [AN_INSTRUCTION] = {"Instruction", {INSTRUCTION}},
  [KERNEL_CALL] = {"KernelCall", {WORD, MUST(WORDS)}},
  [DELEGATE_CALL] = {"DelegateCall", {WORD, MUST(WORDS)}},
  [MOVE] = {"MoveCall", {WORD, WORD}},
  [JUMP] = {"JumpFalseCall", {WORD, WORD}},
  [FREE] = {"FreeCall", {WORD}},
  [OPERATOR] = {"Operator", {MUST(BYTES), BYTES}},
  [DELEGATE] = {"BackendDelegate", {MUST(BYTES), MUST(A_TABLE + REFERENCE), TABLES + COMPILE_SPEC}},
  [REFERENCE] = {"BackendDelegateDataReference", {BYTE, WORD}},
  [COMPILE_SPEC] = {"CompileSpec", {MUST(BYTES), MUST(BYTES)}},
  [INLINE_DATA] = {"BackendDelegateInlineData", {MUST(BYTES)}},
  [BUFFER] = {"Buffer", {BYTES}},
  [SEGMENT] = {"DataSegment", {LONG, LONG}},
  [PARTS] = {"SubsegmentOffsets", {WORD, LONGS}},
  [NAMED_DATA] = {"NamedData", {MUST(BYTES), WORD}},
};

typedef struct checker {
  const al_program *program;
  const uint8_t *file;
  uint32_t end;     /* of the FlatBuffer */
  uint32_t visits;  /* left: a hostile file may name one object very often */
  al_error *error;
} checker;

static al_status fail(const checker *c, al_status status, uint32_t table, uint32_t at) {
  return al_error_set(c->error, status, schema[table].name, -1, at, 0);
}

static al_status corrupt(const checker *c, uint32_t table, uint32_t at) {
  return fail(c, AL_FILE_CORRUPT, table, at);
}

static bool spend(checker *c, uint32_t visits) {
  if (visits > c->visits) return false;
  c->visits -= visits;
  return true;
}

/* The head of a table: it and its vtable are inside. */
static bool check_head(const checker *c, uint32_t at) {
  if (at % 4 || at > c->end - 4) return false;
  uint32_t vtable = at - fb_load32(c->file + at);
  if (vtable % 2 || vtable > c->end - 4) return false;
  uint32_t vtable_size = fb_load16(c->file + vtable), size = fb_load16(c->file + vtable + 2);
  return vtable_size >= 4 && vtable_size % 2 == 0 && vtable_size <= c->end - vtable && size >= 4 &&
         size <= c->end - at;
}

/* Position of what the offset at `at` refers to, 0 if it is outside. */
static uint32_t check_ref(const checker *c, uint32_t at) {
  uint32_t offset = fb_load32(c->file + at);
  return offset >= 4 && offset <= c->end - 4 - at && (at + offset) % 4 == 0 ? at + offset : 0;
}

static bool check_vector(const checker *c, uint32_t at, uint32_t width) {
  return fb_load32(c->file + at) <= (c->end - 4 - at) / width;
}

static al_status check_table(checker *c, uint32_t table, uint32_t at);

static al_status check_tables(checker *c, uint32_t table, uint32_t vector) {
  for (uint32_t i = 0; i < fb_count(c->file, vector); i++) {
    uint32_t item = check_ref(c, vector + 4 + 4 * i);
    if (!item) return corrupt(c, table, vector);
    AL_TRY(check_table(c, table, item));
  }
  return AL_OK;
}

/* A union: its type in one slot, its table in the next. */
static al_status check_union(checker *c, uint32_t table, uint32_t at, uint32_t first, uint32_t count) {
  uint32_t type = fb_u8(c->file, at, UNION_TYPE), field = fb_field(c->file, at, UNION_VALUE);
  if (type == 0 || type > count) return corrupt(c, table, at);
  if (field == 0) return table == EVALUE && type == AL_NULL ? AL_OK : corrupt(c, table, at);
  uint32_t value = check_ref(c, field);
  return value ? check_table(c, first + type - 1, value) : corrupt(c, table, at);
}

static uint32_t width_of(uint32_t kind) {
  return kind == BYTE || kind == VALUE || kind == INSTRUCTION ? 1 : kind == LONG ? 8 : 4;
}

/* The recursion is as deep as the schema: Program, ExecutionPlan, Chain, Instruction, KernelCall. */
static al_status check_table(checker *c, uint32_t table, uint32_t at) {
  if (!spend(c, 1) || !check_head(c, at)) return corrupt(c, table, at);
  uint32_t size = fb_load16(c->file + (uint32_t)(at - fb_load32(c->file + at)) + 2);
  for (uint32_t slot = 0; slot < sizeof schema[0].fields; slot++) {
    uint32_t kind = schema[table].fields[slot] & ~(uint32_t)REQUIRED;
    if (kind == SKIP) continue;
    uint32_t field = fb_field(c->file, at, slot);
    if (!field) {
      if ((schema[table].fields[slot] & REQUIRED) || kind == VALUE || kind == INSTRUCTION) return corrupt(c, table, at);
      continue;
    }
    if (field - at < 4 || field - at + width_of(kind) > size) return corrupt(c, table, at);
    if (kind == VALUE || kind == INSTRUCTION) {
      uint32_t value = fb_field(c->file, at, UNION_VALUE);
      if (value && (value - at < 4 || value - at + 4 > size)) return corrupt(c, table, at);
      AL_TRY(kind == VALUE ? check_union(c, table, at, NONE, AL_OPTIONAL_TENSOR_LIST)
                           : check_union(c, table, at, KERNEL_CALL, INSTRUCTION_FREE));
      continue;
    }
    if (kind <= LONG) continue;
    uint32_t target = check_ref(c, field);
    if (!target) return corrupt(c, table, at);
    if (kind >= A_TABLE && kind < TABLES) {
      AL_TRY(check_table(c, kind - A_TABLE, target));
      continue;
    }
    if (!check_vector(c, target, kind == BYTES ? 1 : kind == LONGS ? 8 : 4)) return corrupt(c, table, at);
    if (kind >= TABLES) AL_TRY(check_tables(c, kind - TABLES, target));
  }
  return AL_OK;
}

static uint32_t root_ref(const al_program *p, uint32_t slot) { return fb_ref(p->data, p->root, slot); }

const uint8_t *al_segment(const al_program *p, uint32_t number, uint32_t *size) {
  uint32_t segment = fb_item(p->data, root_ref(p, PROGRAM_SEGMENTS), number);
  *size = (uint32_t)fb_u64(p->data, segment, SEGMENT_SIZE);
  return p->data + p->segments + (uint32_t)fb_u64(p->data, segment, SEGMENT_OFFSET);
}

static al_status check_segments(checker *c, uint32_t data_size) {
  uint32_t segments = root_ref(c->program, PROGRAM_SEGMENTS);
  uint32_t base = c->program->segments;
  uint64_t end = data_size ? data_size : c->program->size - base;
  for (uint32_t i = 0; i < fb_count(c->file, segments); i++) {
    uint32_t segment = fb_item(c->file, segments, i);
    uint64_t offset = fb_u64(c->file, segment, SEGMENT_OFFSET), size = fb_u64(c->file, segment, SEGMENT_SIZE);
    /* Without an extended header there is no base: its magic number was destroyed. */
    if (offset > end || size > end - offset || (size && !base)) return corrupt(c, SEGMENT, segment);
  }
  return AL_OK;
}

/* Checks that part `index` of a segment is there and has `bytes` bytes; gives its address. */
static al_status check_part(checker *c, uint32_t parts, uint32_t index, uint32_t bytes, uint32_t tensor,
                            const uint8_t **data) {
  uint32_t offsets = parts ? fb_ref(c->file, parts, PARTS_OFFSETS) : 0;
  uint32_t segment = parts ? fb_u32(c->file, parts, PARTS_SEGMENT) : 0;
  if (index >= fb_count(c->file, offsets)) return corrupt(c, TENSOR, tensor);
  if (segment >= fb_count(c->file, root_ref(c->program, PROGRAM_SEGMENTS))) return corrupt(c, PARTS, parts);
  uint32_t size;
  const uint8_t *start = al_segment(c->program, segment, &size);
  uint64_t offset = fb_load64(fb_items(c->file, offsets) + 8 * (size_t)index);
  if (offset > size || bytes > size - offset) return corrupt(c, TENSOR, tensor);
  *data = start + offset;
  return AL_OK;
}

static al_status check_storage(checker *c, uint32_t plan, uint32_t at, uint32_t bytes, uint32_t width) {
  const uint8_t *file = c->file, *data;
  uint32_t index = fb_u32(file, at, TENSOR_DATA), place = fb_ref(file, at, TENSOR_ALLOCATION);
  uint32_t extra = fb_ref(file, at, TENSOR_EXTRA);
  if (extra && fb_u8(file, extra, EXTRA_LOCATION)) return fail(c, AL_FILE_UNSUPPORTED, EXTRA, extra); /* .ptd */
  if (!place) {
    if (!index) return AL_OK;
    uint32_t constants = root_ref(c->program, PROGRAM_CONSTANTS);
    if (!constants || !fb_count(file, fb_ref(file, constants, PARTS_OFFSETS)))
      return fail(c, AL_FILE_UNSUPPORTED, BUFFER, at); /* constants inside of the FlatBuffer: an old format */
    AL_TRY(check_part(c, constants, index, bytes, at, &data));
    return (uint32_t)(data - file) % width ? corrupt(c, TENSOR, at) : AL_OK;
  }
  uint32_t arenas = fb_ref(file, plan, PLAN_ARENAS), id = fb_u32(file, place, ALLOCATION_ID);
  uint32_t offset = fb_u32(file, place, ALLOCATION_LOW);
  if (id == 0 || id >= fb_count(file, arenas) || fb_u32(file, place, ALLOCATION_HIGH)) return corrupt(c, TENSOR, at);
  uint64_t size = fb_load64(fb_items(file, arenas) + 8 * (size_t)id);
  if (offset % width || offset > size || bytes > size - offset) return corrupt(c, TENSOR, at);
  if (!index) return AL_OK;
  uint32_t states = root_ref(c->program, PROGRAM_STATES);
  return check_part(c, fb_count(file, states) ? fb_item(file, states, 0) : 0, index, bytes, at, &data);
}

uint32_t al_table_nbytes(const uint8_t *file, uint32_t tensor) {
  uint32_t sizes = fb_ref(file, tensor, TENSOR_SIZES), bytes = al_dtype_size((al_dtype)fb_u8(file, tensor, TENSOR_DTYPE));
  for (uint32_t i = 0; i < fb_count(file, sizes); i++) bytes *= fb_load32(fb_items(file, sizes) + 4 * i);
  return bytes;
}

static al_status check_tensor(checker *c, uint32_t plan, uint32_t at) {
  const uint8_t *file = c->file;
  uint32_t sizes = fb_ref(file, at, TENSOR_SIZES), order = fb_ref(file, at, TENSOR_DIM_ORDER);
  uint32_t rank = fb_count(file, sizes), width = al_dtype_size((al_dtype)fb_u8(file, at, TENSOR_DTYPE));
  if (width == 0 || rank > AL_MAX_RANK || fb_u8(file, at, TENSOR_DYNAMISM) > 1 || fb_u8(file, at, TENSOR_LAYOUT) ||
      fb_u32(file, at, TENSOR_STORAGE_OFFSET))
    return fail(c, AL_FILE_UNSUPPORTED, TENSOR, at);
  if (fb_count(file, order) != rank) return corrupt(c, TENSOR, at);
  uint64_t most = width; /* bytes if no size were 0: strides must fit, too */
  uint32_t seen = 0;
  for (uint32_t i = 0; i < rank; i++) {
    uint32_t size = fb_load32(fb_items(file, sizes) + 4 * i), dim = fb_items(file, order)[i];
    if (size > INT32_MAX || dim >= rank || (seen >> dim & 1)) return corrupt(c, TENSOR, at);
    seen |= 1u << dim;
    most *= size ? size : 1;
    if (most > INT32_MAX) return fail(c, AL_FILE_UNSUPPORTED, TENSOR, at);
  }
  return check_storage(c, plan, at, al_table_nbytes(file, at), width);
}

/* Items of a vector of value indices of 4 or 8 bytes; `least` is -1 where None is allowed. */
static al_status check_indices(checker *c, uint32_t vector, uint32_t width, int64_t least, uint32_t count,
                               uint32_t table, uint32_t at) {
  uint32_t items = fb_count(c->file, vector);
  if (!spend(c, items)) return corrupt(c, table, at);
  for (uint32_t i = 0; i < items; i++) {
    const uint8_t *item = fb_items(c->file, vector) + (size_t)width * i;
    int64_t index = width == 8 ? (int64_t)fb_load64(item) : (int32_t)fb_load32(item);
    if (index < least || index >= (int64_t)count) return corrupt(c, table, at);
  }
  return AL_OK;
}

static al_status check_value(checker *c, uint32_t plan, uint32_t value, uint32_t count) {
  uint32_t type = fb_u8(c->file, value, UNION_TYPE), at = fb_ref(c->file, value, UNION_VALUE);
  switch (type) {
    case AL_TENSOR: return check_tensor(c, plan, at);
    case AL_INT_LIST: return check_indices(c, fb_ref(c->file, at, 0), 8, 0, count, INT_LIST, at);
    case AL_TENSOR_LIST: return check_indices(c, fb_ref(c->file, at, 0), 4, 0, count, TENSOR_LIST, at);
    case AL_OPTIONAL_TENSOR_LIST:
      return check_indices(c, fb_ref(c->file, at, 0), 4, -1, count, OPTIONAL_TENSOR_LIST, at);
    default: return AL_OK;
  }
}

static al_status check_instruction(checker *c, uint32_t plan, uint32_t instruction, uint32_t instructions,
                                   uint32_t values) {
  const uint8_t *file = c->file;
  uint32_t type = fb_u8(file, instruction, UNION_TYPE), at = fb_ref(file, instruction, UNION_VALUE);
  uint32_t first = fb_u32(file, at, 0), second = fb_u32(file, at, 1), table = KERNEL_CALL + type - 1;
  bool good;
  switch (type) {
    case INSTRUCTION_KERNEL:
    case INSTRUCTION_DELEGATE:
      good = first < fb_count(file, fb_ref(file, plan, type == INSTRUCTION_KERNEL ? PLAN_OPERATORS : PLAN_DELEGATES));
      return good ? check_indices(c, fb_ref(file, at, CALL_ARGS), 4, 0, values, table, at) : corrupt(c, table, at);
    case INSTRUCTION_MOVE: good = first < values && second < values; break;
    case INSTRUCTION_JUMP_FALSE: good = first < values && second <= instructions; break;
    default: good = first < values; break;
  }
  return good ? AL_OK : corrupt(c, table, at);
}

static al_status check_delegate(checker *c, uint32_t delegate) {
  const uint8_t *file = c->file;
  uint32_t reference = fb_ref(file, delegate, DELEGATE_DATA);
  uint32_t location = fb_u8(file, reference, REFERENCE_LOCATION), index = fb_u32(file, reference, REFERENCE_INDEX);
  uint32_t holders = root_ref(c->program, location ? PROGRAM_SEGMENTS : PROGRAM_INLINE_DELEGATES), size;
  if (location > 1 || index >= fb_count(file, holders)) return corrupt(c, REFERENCE, reference);
  const uint8_t *data = location ? al_segment(c->program, index, &size)
                                 : fb_items(file, fb_ref(file, fb_item(file, holders, index), 0));
  return (uint32_t)(data - file) % AL_ALIGNMENT ? corrupt(c, DELEGATE, delegate) : AL_OK;
}

static al_status check_plan(checker *c, uint32_t plan) {
  const uint8_t *file = c->file;
  uint32_t values = fb_ref(file, plan, PLAN_VALUES), value_count = fb_count(file, values);
  uint32_t arenas = fb_ref(file, plan, PLAN_ARENAS), chains = fb_ref(file, plan, PLAN_CHAINS);
  if (fb_count(file, chains) == 0) return corrupt(c, PLAN, plan);
  if (fb_count(file, chains) > 1 || fb_count(file, arenas) > AL_MAX_ARENAS + 1)
    return fail(c, AL_FILE_UNSUPPORTED, PLAN, plan);
  for (uint32_t i = 1; i < fb_count(file, arenas); i++) {
    if (fb_load64(fb_items(file, arenas) + 8 * i) > INT32_MAX) return corrupt(c, PLAN, plan);
  }
  for (uint32_t i = 0; i < value_count; i++) AL_TRY(check_value(c, plan, fb_item(file, values, i), value_count));
  for (uint32_t slot = PLAN_INPUTS; slot <= PLAN_OUTPUTS; slot++)
    AL_TRY(check_indices(c, fb_ref(file, plan, slot), 4, 0, value_count, PLAN, plan));
  uint32_t delegates = fb_ref(file, plan, PLAN_DELEGATES);
  for (uint32_t i = 0; i < fb_count(file, delegates); i++) AL_TRY(check_delegate(c, fb_item(file, delegates, i)));
  uint32_t instructions = fb_ref(file, fb_item(file, chains, 0), CHAIN_INSTRUCTIONS);
  for (uint32_t i = 0; i < fb_count(file, instructions); i++)
    AL_TRY(check_instruction(c, plan, fb_item(file, instructions, i), fb_count(file, instructions), value_count));
  return AL_OK;
}

static al_status truncated(al_error *error, uint64_t needed, uint32_t available) {
  return al_error_set(error, AL_FILE_TRUNCATED, NULL, -1, needed > UINT32_MAX ? UINT32_MAX : (uint32_t)needed,
                      available);
}

/* Bytes "eh00", header length, program size, segment base offset, segment data size (not in 24-byte headers). */
static al_status read_header(al_program *p, uint32_t *data_size, al_error *error) {
  p->flatbuffer = p->size;
  const uint8_t *header = p->data + HEADER_AT;
  if (memcmp(header, "eh00", 4) != 0) return AL_OK;
  uint32_t length = fb_load32(header + 4);
  uint64_t flatbuffer = fb_load64(header + 8), base = fb_load64(header + 16);
  uint64_t data = length >= 32 ? fb_load64(header + 24) : 0;
  if (length < 24 || flatbuffer < SMALLEST_FILE || (base && base < flatbuffer) || (!base && data))
    return al_error_set(error, AL_FILE_CORRUPT, "extended header", -1, HEADER_AT, 0);
  if (flatbuffer > p->size) return truncated(error, flatbuffer, p->size);
  if (base > p->size || data > p->size - base) return truncated(error, base > p->size ? base : base + data, p->size);
  p->flatbuffer = (uint32_t)flatbuffer;
  p->segments = (uint32_t)base;
  *data_size = (uint32_t)data;
  return AL_OK;
}

al_status al_program_load(al_program *program, const void *data, size_t size, al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  *program = (al_program){.data = data, .size = (uint32_t)size};
  if ((uintptr_t)data % AL_ALIGNMENT) return al_error_set(error, AL_FILE_MISALIGNED, NULL, -1, 0, 0);
  if (size >= 8 && memcmp(program->data + 4, "ET12", 4) != 0) return al_error_set(error, AL_FILE_FOREIGN, NULL, -1, 0, 0);
  if (size < SMALLEST_FILE) return truncated(error, SMALLEST_FILE, (uint32_t)size);
  if (size > INT32_MAX) return al_error_set(error, AL_FILE_UNSUPPORTED, NULL, -1, 0, 0);
  uint32_t data_size = 0;
  AL_TRY(read_header(program, &data_size, error));

  uint32_t end = program->flatbuffer;
  checker c = {program, data, end, end < UINT32_MAX / VISITS_PER_BYTE ? end * VISITS_PER_BYTE : UINT32_MAX, error};
  program->root = fb_load32(program->data);
  if (!check_head(&c, program->root)) return corrupt(&c, PROGRAM, program->root);
  uint32_t version = fb_field(program->data, program->root, PROGRAM_VERSION);
  if (version && version > end - 4) return corrupt(&c, PROGRAM, program->root);
  /* Before the rest: what follows may differ in a newer version. */
  if (version && fb_load32(program->data + version))
    return al_error_set(error, AL_FILE_TOO_NEW, NULL, -1, fb_load32(program->data + version), 0);
  AL_TRY(check_table(&c, PROGRAM, program->root));
  AL_TRY(check_segments(&c, data_size));
  uint32_t plans = root_ref(program, PROGRAM_PLANS);
  if (fb_count(program->data, plans) == 0) return corrupt(&c, PROGRAM, program->root);
  for (uint32_t i = 0; i < fb_count(program->data, plans); i++)
    AL_TRY(check_plan(&c, fb_item(program->data, plans, i)));
  return AL_OK;
}

uint32_t al_program_methods(const al_program *program) {
  return fb_count(program->data, root_ref(program, PROGRAM_PLANS));
}

const char *al_program_method_name(const al_program *program, uint32_t number, uint32_t *size) {
  if (number >= al_program_methods(program)) return NULL;
  uint32_t plan = fb_item(program->data, root_ref(program, PROGRAM_PLANS), number);
  uint32_t name = fb_ref(program->data, plan, PLAN_NAME);
  *size = fb_count(program->data, name);
  return (const char *)fb_items(program->data, name);
}
