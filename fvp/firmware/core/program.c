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
  const uint8_t *end;  /* of the FlatBuffer */
  uint32_t visits;     /* left: a hostile file may name one object very often */
  uint32_t table;      /* what is being checked, for the error */
  const uint8_t *at;
} checker;

static bool spend(checker *c, uint32_t visits) {
  if (visits > c->visits) return false;
  c->visits -= visits;
  return true;
}

static uint32_t bytes_from(const checker *c, const uint8_t *at) { return (uint32_t)(c->end - at); }

/* Bytes of a table if it and its vtable are inside, else 0. At least 4 bytes from `at` on are. */
static uint32_t check_head(const checker *c, const uint8_t *at) {
  uint32_t start = (uint32_t)(at - c->program->data);
  uint32_t vtable = start - fb_load32(at); /* the offset is signed: unsigned arithmetic wraps to the same */
  uint32_t end = c->program->flatbuffer;
  if (vtable % 2 || vtable > end - 4) return 0;
  uint32_t vtable_size = fb_load16(c->program->data + vtable), size = fb_load16(c->program->data + vtable + 2);
  return vtable_size >= 4 && vtable_size <= end - vtable && size >= 4 && size <= end - start ? size : 0;
}

/* What the offset at `at` refers to, NULL if it is outside. */
static const uint8_t *check_ref(const checker *c, const uint8_t *at) {
  uint32_t offset = fb_load32(at);
  return offset >= 4 && offset <= bytes_from(c, at) - 4 && (uintptr_t)(at + offset) % 4 == 0 ? at + offset : NULL;
}

static uint32_t width_of(uint32_t kind) {
  return kind == BYTE || kind == VALUE || kind == INSTRUCTION || kind == BYTES ? 1 : kind == LONG || kind == LONGS ? 8
       : 4;
}

static bool check_table(checker *c, uint32_t table, const uint8_t *at);

static bool check_field(checker *c, uint32_t kind, const uint8_t *at, const uint8_t *field, uint32_t size) {
  if (kind == VALUE || kind == INSTRUCTION) { /* a union: its type in this slot, its table in the next */
    uint32_t type = *field;
    field = fb_field(at, UNION_VALUE);
    if (!field) return kind == VALUE && type == AL_NULL;
    if (type == 0 || type > (kind == VALUE ? AL_OPTIONAL_TENSOR_LIST : INSTRUCTION_FREE)) return false;
    kind = (kind == VALUE ? A_TABLE + NONE - 1u : A_TABLE + KERNEL_CALL - 1u) + type;
    uint32_t offset = (uint32_t)(field - at);
    if (offset < 4 || offset + 4 > size) return false;
  }
  if (kind <= LONG) return true;
  const uint8_t *target = check_ref(c, field);
  if (!target) return false;
  if (kind >= A_TABLE && kind < TABLES) return check_table(c, kind - A_TABLE, target);
  uint32_t count = fb_load32(target);
  if (count > (bytes_from(c, target) - 4) / width_of(kind)) return false;
  for (uint32_t i = 0; kind >= TABLES && i < count; i++) {
    const uint8_t *item = check_ref(c, target + 4 + 4 * (size_t)i);
    if (!item || !check_table(c, kind - TABLES, item)) return false;
  }
  return true;
}

/* The recursion is as deep as the schema: Program, ExecutionPlan, Chain, Instruction, KernelCall. */
static bool check_table(checker *c, uint32_t table, const uint8_t *at) {
  uint32_t size = check_head(c, at), slot = 0;
  if (!spend(c, 1)) size = 0;
  for (; size && slot < sizeof schema[0].fields; slot++) {
    uint32_t kind = schema[table].fields[slot], must = kind & REQUIRED;
    if (kind == SKIP) continue;
    kind -= must;
    const uint8_t *field = fb_field(at, slot);
    uint32_t offset = field ? (uint32_t)(field - at) : 0;
    if (field ? offset < 4 || offset + (kind > LONG && kind < VALUE ? 4 : width_of(kind)) > size
              : must || kind == VALUE || kind == INSTRUCTION) break;
    c->at = NULL;
    if (field && !check_field(c, kind, at, field, size)) {
      if (c->at) return false; /* in a table below */
      break;
    }
  }
  if (size && slot == sizeof schema[0].fields) return true;
  c->table = table;
  c->at = at;
  return false;
}

const uint8_t *al_segment(const al_program *p, uint32_t number, uint32_t *size) {
  const uint8_t *segment = fb_item(al_root(p, PROGRAM_SEGMENTS), number);
  *size = (uint32_t)fb_u64(segment, SEGMENT_SIZE);
  return p->data + p->segments + (uint32_t)fb_u64(segment, SEGMENT_OFFSET);
}

static void begin(checker *c, uint32_t table, const uint8_t *at) {
  c->table = table;
  c->at = at;
}

static al_status corrupt_unless(bool good) { return good ? AL_OK : AL_FILE_CORRUPT; }

static al_status check_segments(checker *c, uint32_t data_size) {
  const uint8_t *segments = al_root(c->program, PROGRAM_SEGMENTS);
  uint32_t base = c->program->segments, end = data_size ? data_size : c->program->size - base;
  for (uint32_t i = 0; i < fb_count(segments); i++) {
    const uint8_t *segment = fb_item(segments, i);
    begin(c, SEGMENT, segment);
    uint64_t offset = fb_u64(segment, SEGMENT_OFFSET), size = fb_u64(segment, SEGMENT_SIZE);
    /* Without an extended header there is no base: its magic number was destroyed. */
    if (offset > end || size > end - offset || (size && !base)) return AL_FILE_CORRUPT;
  }
  return AL_OK;
}

/* Address of part `index` of a segment if it is there and has `bytes` bytes, else NULL. */
static const uint8_t *check_part(checker *c, const uint8_t *parts, uint32_t index, uint32_t bytes) {
  const uint8_t *offsets = parts ? fb_ref(parts, PARTS_OFFSETS) : NULL;
  if (index >= fb_count(offsets)) return NULL;
  uint32_t segment = fb_u32(parts, PARTS_SEGMENT), size;
  if (segment >= fb_count(al_root(c->program, PROGRAM_SEGMENTS))) return NULL;
  const uint8_t *start = al_segment(c->program, segment, &size);
  uint64_t offset = fb_long(offsets, index);
  return offset <= size && bytes <= size - offset ? start + offset : NULL;
}

static al_status check_storage(checker *c, const uint8_t *plan, const uint8_t *tensor, uint32_t width) {
  uint32_t index = fb_u32(tensor, TENSOR_DATA), bytes = al_table_nbytes(tensor);
  const uint8_t *place = fb_ref(tensor, TENSOR_ALLOCATION), *extra = fb_ref(tensor, TENSOR_EXTRA);
  if (extra && fb_u8(extra, EXTRA_LOCATION)) { /* in a .ptd file */
    begin(c, EXTRA, extra);
    return AL_FILE_UNSUPPORTED;
  }
  const uint8_t *parts = al_root(c->program, PROGRAM_CONSTANTS);
  if (place) {
    const uint8_t *arenas = fb_ref(plan, PLAN_ARENAS);
    uint32_t id = fb_u32(place, ALLOCATION_ID), offset = fb_u32(place, ALLOCATION_LOW);
    if (id == 0 || id >= fb_count(arenas) || fb_u32(place, ALLOCATION_HIGH)) return AL_FILE_CORRUPT;
    uint32_t size = (uint32_t)fb_long(arenas, id);
    if (offset % width || offset > size || bytes > size - offset) return AL_FILE_CORRUPT;
    const uint8_t *states = al_root(c->program, PROGRAM_STATES);
    parts = fb_count(states) ? fb_item(states, 0) : NULL;
  } else if (index && (!parts || !fb_count(fb_ref(parts, PARTS_OFFSETS)))) {
    return AL_FILE_UNSUPPORTED; /* constants inside of the FlatBuffer: an old format */
  }
  if (!index) return AL_OK;
  const uint8_t *data = check_part(c, parts, index, bytes);
  return corrupt_unless(data && (place || (uintptr_t)data % width == 0));
}

uint32_t al_table_nbytes(const uint8_t *tensor) {
  const uint8_t *sizes = fb_ref(tensor, TENSOR_SIZES);
  uint32_t bytes = al_dtype_size((al_dtype)fb_u8(tensor, TENSOR_DTYPE));
  for (uint32_t i = 0; i < fb_count(sizes); i++) bytes *= fb_word(sizes, i);
  return bytes;
}

static al_status check_tensor(checker *c, const uint8_t *plan, const uint8_t *tensor) {
  const uint8_t *sizes = fb_ref(tensor, TENSOR_SIZES), *order = fb_ref(tensor, TENSOR_DIM_ORDER);
  uint32_t rank = fb_count(sizes), width = al_dtype_size((al_dtype)fb_u8(tensor, TENSOR_DTYPE));
  if (width == 0 || rank > AL_MAX_RANK || fb_u8(tensor, TENSOR_DYNAMISM) > 1 || fb_u8(tensor, TENSOR_LAYOUT) ||
      fb_u32(tensor, TENSOR_STORAGE_OFFSET))
    return AL_FILE_UNSUPPORTED;
  if (fb_count(order) != rank) return AL_FILE_CORRUPT;
  uint64_t most = width; /* bytes if no size were 0: strides must fit, too */
  uint32_t seen = 0;
  for (uint32_t i = 0; i < rank; i++) {
    uint32_t size = fb_word(sizes, i), dim = fb_items(order)[i];
    if (size > INT32_MAX || dim >= rank || (seen >> dim & 1)) return AL_FILE_CORRUPT;
    seen |= 1u << dim;
    most *= size ? size : 1;
    if (most > INT32_MAX) return AL_FILE_UNSUPPORTED;
  }
  return check_storage(c, plan, tensor, width);
}

/* Items of a vector of value indices of 4 or 8 bytes; `least` is -1 where None is allowed. */
static al_status check_indices(checker *c, const uint8_t *vector, uint32_t width, int32_t least, uint32_t count) {
  uint32_t items = fb_count(vector);
  if (!spend(c, items)) return AL_FILE_CORRUPT;
  for (uint32_t i = 0; i < items; i++) {
    int64_t index = width == 8 ? (int64_t)fb_long(vector, i) : (int32_t)fb_word(vector, i);
    if (index < least || index >= (int64_t)count) return AL_FILE_CORRUPT;
  }
  return AL_OK;
}

static al_status check_value(checker *c, const uint8_t *plan, const uint8_t *value, uint32_t count) {
  uint32_t type = fb_u8(value, UNION_TYPE);
  const uint8_t *at = fb_ref(value, UNION_VALUE);
  begin(c, NONE + type - 1, at);
  if (type == AL_TENSOR) return check_tensor(c, plan, at);
  if (type != AL_INT_LIST && type < AL_TENSOR_LIST) return AL_OK;
  return check_indices(c, fb_ref(at, 0), type == AL_INT_LIST ? 8 : 4, type == AL_OPTIONAL_TENSOR_LIST ? -1 : 0, count);
}

static al_status check_instruction(checker *c, const uint8_t *plan, const uint8_t *instruction, uint32_t instructions,
                                   uint32_t values) {
  uint32_t type = fb_u8(instruction, UNION_TYPE);
  const uint8_t *at = fb_ref(instruction, UNION_VALUE);
  begin(c, KERNEL_CALL + type - 1, at);
  uint32_t first = fb_u32(at, 0), second = 0, first_end = values, second_end = 1;
  if (type <= INSTRUCTION_DELEGATE) {
    first_end = fb_count(fb_ref(plan, type == INSTRUCTION_KERNEL ? PLAN_OPERATORS : PLAN_DELEGATES));
    AL_TRY(check_indices(c, fb_ref(at, CALL_ARGS), 4, 0, values));
  } else if (type <= INSTRUCTION_JUMP_FALSE) {
    second = fb_u32(at, 1);
    second_end = type == INSTRUCTION_MOVE ? values : instructions + 1; /* a jump may end the method */
  }
  return corrupt_unless(first < first_end && second < second_end);
}

static al_status check_delegate(checker *c, const uint8_t *delegate) {
  begin(c, DELEGATE, delegate);
  const uint8_t *reference = fb_ref(delegate, DELEGATE_DATA);
  uint32_t location = fb_u8(reference, REFERENCE_LOCATION), index = fb_u32(reference, REFERENCE_INDEX), size;
  const uint8_t *holders = al_root(c->program, location ? PROGRAM_SEGMENTS : PROGRAM_INLINE_DELEGATES);
  if (location > 1 || index >= fb_count(holders)) return AL_FILE_CORRUPT;
  const uint8_t *data = location ? al_segment(c->program, index, &size)
                                 : fb_items(fb_ref(fb_item(holders, index), 0));
  return corrupt_unless((uintptr_t)data % AL_ALIGNMENT == 0);
}

static al_status check_plan(checker *c, const uint8_t *plan) {
  begin(c, PLAN, plan);
  const uint8_t *values = fb_ref(plan, PLAN_VALUES), *arenas = fb_ref(plan, PLAN_ARENAS);
  const uint8_t *chains = fb_ref(plan, PLAN_CHAINS), *delegates = fb_ref(plan, PLAN_DELEGATES);
  uint32_t value_count = fb_count(values);
  if (fb_count(chains) == 0) return AL_FILE_CORRUPT;
  if (fb_count(chains) > 1 || fb_count(arenas) > AL_MAX_ARENAS + 1) return AL_FILE_UNSUPPORTED;
  for (uint32_t i = 1; i < fb_count(arenas); i++) {
    if (fb_long(arenas, i) > INT32_MAX) return AL_FILE_CORRUPT;
  }
  AL_TRY(check_indices(c, fb_ref(plan, PLAN_INPUTS), 4, 0, value_count));
  AL_TRY(check_indices(c, fb_ref(plan, PLAN_OUTPUTS), 4, 0, value_count));
  for (uint32_t i = 0; i < value_count; i++) AL_TRY(check_value(c, plan, fb_item(values, i), value_count));
  for (uint32_t i = 0; i < fb_count(delegates); i++) AL_TRY(check_delegate(c, fb_item(delegates, i)));
  const uint8_t *instructions = fb_ref(fb_item(chains, 0), CHAIN_INSTRUCTIONS);
  for (uint32_t i = 0; i < fb_count(instructions); i++)
    AL_TRY(check_instruction(c, plan, fb_item(instructions, i), fb_count(instructions), value_count));
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
  if (length < 24 || flatbuffer < SMALLEST_FILE || (flatbuffer <= p->size && (base ? base < flatbuffer : data != 0)))
    return al_error_set(error, AL_FILE_CORRUPT, "extended header", -1, HEADER_AT, 0);
  if (flatbuffer > p->size) return truncated(error, flatbuffer, p->size);
  if (base > p->size || data > p->size - base) return truncated(error, base > p->size ? base : base + data, p->size);
  p->flatbuffer = (uint32_t)flatbuffer;
  p->segments = (uint32_t)base;
  *data_size = (uint32_t)data;
  return AL_OK;
}

static al_status check_program(checker *c, uint32_t data_size) {
  const uint8_t *data = c->program->data, *root = data + c->program->root;
  uint32_t root_size = 0;
  begin(c, PROGRAM, data);
  if (c->program->root % 4 == 0 && c->program->root <= c->program->flatbuffer - 4) root_size = check_head(c, root);
  if (!root_size) return AL_FILE_CORRUPT;
  /* Before the rest: what follows may differ in a newer version. */
  const uint8_t *version = fb_field(root, PROGRAM_VERSION);
  if (version && version - root <= (int32_t)root_size - 4 && fb_load32(version)) return AL_FILE_TOO_NEW;
  AL_TRY(corrupt_unless(check_table(c, PROGRAM, root)));
  AL_TRY(check_segments(c, data_size));
  const uint8_t *plans = al_root(c->program, PROGRAM_PLANS);
  begin(c, PROGRAM, root);
  if (fb_count(plans) == 0) return AL_FILE_CORRUPT;
  for (uint32_t i = 0; i < fb_count(plans); i++) AL_TRY(check_plan(c, fb_item(plans, i)));
  return AL_OK;
}

al_status al_program_load(al_program *program, const void *data, size_t size, al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  *program = (al_program){.data = data, .size = (uint32_t)size};
  al_status status = (uintptr_t)data % AL_ALIGNMENT ? AL_FILE_MISALIGNED
                   : size >= 8 && memcmp(program->data + 4, "ET12", 4) ? AL_FILE_FOREIGN
                   : size > INT32_MAX ? AL_FILE_UNSUPPORTED : AL_OK;
  if (status) return error->status = status;
  if (size < SMALLEST_FILE) return truncated(error, SMALLEST_FILE, (uint32_t)size);
  uint32_t data_size = 0;
  AL_TRY(read_header(program, &data_size, error));
  uint32_t bytes = program->flatbuffer;
  checker c = {.program = program, .end = program->data + bytes,
               .visits = bytes < UINT32_MAX / VISITS_PER_BYTE ? bytes * VISITS_PER_BYTE : UINT32_MAX};
  program->root = fb_load32(program->data);
  status = check_program(&c, data_size);
  if (status == AL_FILE_TOO_NEW) {
    error->needed = fb_u32(program->data + program->root, PROGRAM_VERSION);
    return error->status = status;
  }
  return status ? al_error_set(error, status, schema[c.table].name, -1, (uint32_t)(c.at - program->data), 0) : AL_OK;
}

uint32_t al_program_methods(const al_program *program) { return fb_count(al_root(program, PROGRAM_PLANS)); }

const char *al_program_method_name(const al_program *program, uint32_t number, uint32_t *size) {
  if (number >= al_program_methods(program)) return NULL;
  const uint8_t *name = fb_ref(fb_item(al_root(program, PROGRAM_PLANS), number), PLAN_NAME);
  *size = fb_count(name);
  return (const char *)fb_items(name);
}
