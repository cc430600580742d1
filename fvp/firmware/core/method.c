/* Builds a method in the caller's memory, and executes it. */
#include "core.h"

typedef struct delegate {
  const al_backend *backend;
  const void *data;
  uint32_t size;
} delegate;

struct al_method {
  const uint8_t *plan;         /* ExecutionPlan table */
  const uint8_t *instructions; /* vector */
  al_value *values;
  uint32_t value_count;
  const al_kernel **kernels; /* one for each operator of the plan */
  delegate *delegates;
  uint8_t *arenas[AL_MAX_ARENAS];
  al_block scratch, fast_scratch;
  al_observer observer;
};

/* What a plan's memory.values holds, in this order; 8-byte aligned parts first. */
typedef struct layout {
  uint32_t values, tensors, delegates, operators, dims; /* counts */
  uint64_t bytes;
} layout;

static uint64_t aligned(uint64_t bytes) { return (bytes + AL_ALIGNMENT - 1) / AL_ALIGNMENT * AL_ALIGNMENT; }

static layout plan_layout(const uint8_t *plan) {
  const uint8_t *values = fb_ref(plan, PLAN_VALUES);
  layout l = {.values = fb_count(values), .operators = fb_count(fb_ref(plan, PLAN_OPERATORS)),
              .delegates = fb_count(fb_ref(plan, PLAN_DELEGATES))};
  for (uint32_t i = 0; i < l.values; i++) {
    const uint8_t *value = fb_item(values, i);
    if (fb_u8(value, UNION_TYPE) != AL_TENSOR) continue;
    const uint8_t *tensor = fb_ref(value, UNION_VALUE);
    l.tensors++;
    if (fb_u8(tensor, TENSOR_DYNAMISM)) l.dims += fb_count(fb_ref(tensor, TENSOR_SIZES));
  }
  l.bytes = aligned(aligned(sizeof(al_method)) + (uint64_t)l.values * sizeof(al_value) +
                    (uint64_t)l.tensors * sizeof(al_tensor) + (uint64_t)l.delegates * sizeof(delegate) +
                    (uint64_t)l.operators * sizeof(al_kernel *) + (uint64_t)l.dims * sizeof(int32_t));
  return l;
}

static al_status find_plan(const al_program *program, const char *method, const uint8_t **plan,
                           al_error *error) {
  const uint8_t *plans = al_root(program, PROGRAM_PLANS);
  for (uint32_t i = 0; i < fb_count(plans); i++) {
    *plan = fb_item(plans, i);
    const uint8_t *name = fb_ref(*plan, PLAN_NAME);
    if (!method || (strlen(method) == fb_count(name) && !memcmp(method, fb_items(name), strlen(method))))
      return AL_OK;
  }
  return al_error_set(error, AL_NO_SUCH_METHOD, method, -1, 0, 0);
}

static al_status find_delegate(const al_program *program, const uint8_t *table, const al_config *config, delegate *result,
                               uint32_t *scratch, al_error *error) {
  const uint8_t *id = fb_ref(table, DELEGATE_ID), *reference = fb_ref(table, DELEGATE_DATA);
  uint32_t index = fb_u32(reference, REFERENCE_INDEX);
  if (fb_u8(reference, REFERENCE_LOCATION)) {
    result->data = al_segment(program, index, &result->size);
  } else {
    const uint8_t *holder = fb_item(al_root(program, PROGRAM_INLINE_DELEGATES), index);
    const uint8_t *data = fb_ref(holder, 0);
    result->data = fb_items(data);
    result->size = fb_count(data);
  }
  error->name = (const char *)fb_items(id);
  error->name_size = fb_count(id);
  for (uint32_t i = 0; i < config->backend_count; i++) {
    const al_backend *backend = &config->backends[i];
    if (strlen(backend->id) != error->name_size || memcmp(backend->id, error->name, error->name_size)) continue;
    result->backend = backend;
    error->status = backend->check(backend->state, result->data, result->size, scratch);
    return error->status;
  }
  return error->status = AL_BACKEND_MISSING;
}

al_status al_method_needs(const al_program *program, const char *method, const al_config *config, al_needs *needs,
                          al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  const uint8_t *plan;
  AL_TRY(find_plan(program, method, &plan, error));
  uint64_t bytes = plan_layout(plan).bytes;
  if (bytes > INT32_MAX) return al_error_set(error, AL_FILE_UNSUPPORTED, NULL, -1, 0, 0);
  *needs = (al_needs){.values = (uint32_t)bytes, .input_count = fb_count(fb_ref(plan, PLAN_INPUTS)),
                      .output_count = fb_count(fb_ref(plan, PLAN_OUTPUTS))};
  const uint8_t *arenas = fb_ref(plan, PLAN_ARENAS);
  for (uint32_t i = 1; i < fb_count(arenas); i++)
    needs->arenas[i - 1] = (uint32_t)fb_long(arenas, i);
  const uint8_t *delegates = fb_ref(plan, PLAN_DELEGATES);
  for (uint32_t i = 0; config && i < fb_count(delegates); i++) {
    delegate d;
    uint32_t scratch = 0;
    AL_TRY(find_delegate(program, fb_item(delegates, i), config, &d, &scratch, error));
    if (scratch > needs->scratch) needs->scratch = scratch;
  }
  al_error_begin(error, &spare);
  return AL_OK;
}

static bool same_name(const char *full, const uint8_t *name, const uint8_t *overload) {
  uint32_t name_size = fb_count(name), overload_size = fb_count(overload);
  if (strncmp(full, (const char *)fb_items(name), name_size)) return false;
  if (!overload_size) return full[name_size] == 0;
  return full[name_size] == '.' && strlen(full) == (size_t)name_size + 1 + overload_size &&
         !memcmp(full + name_size + 1, fb_items(overload), overload_size);
}

static const al_kernel *find_kernel(const uint8_t *operator, const al_config *config, al_error *error) {
  const uint8_t *name = fb_ref(operator, OPERATOR_NAME), *overload = fb_ref(operator, OPERATOR_OVERLOAD);
  if (memchr(fb_items(name), 0, fb_count(name)) == NULL) {
    for (uint32_t i = 0; i < config->kernel_count; i++) {
      if (same_name(config->kernels[i].name, name, overload)) return &config->kernels[i];
    }
  }
  *error = (al_error){.status = AL_KERNEL_MISSING, .instruction = -1, .argument = -1,
                      .name = (const char *)fb_items(name), .name_size = fb_count(name)};
  if (overload) {
    error->overload = (const char *)fb_items(overload);
    error->overload_size = fb_count(overload);
  }
  return NULL;
}

/* Gives a tensor that is no constant its planned memory. Without bytes it needs none, but an address. */
static void place_tensor(const al_method *m, const uint8_t *table, al_tensor *t) {
  const uint8_t *place = fb_ref(table, TENSOR_ALLOCATION);
  uint8_t *arena = place ? m->arenas[fb_u32(place, ALLOCATION_ID) - 1] : NULL;
  t->data = arena ? arena + fb_u32(place, ALLOCATION_LOW) : NULL;
  t->capacity = al_table_nbytes(table);
  if (!t->capacity && !t->data) t->data = t;
  t->constant = t->view = t->lent = false;
}

static void init_tensor(const al_program *program, const uint8_t *table, const al_method *m, al_tensor *t,
                        int32_t **dims) {
  const uint8_t *sizes = fb_ref(table, TENSOR_SIZES);
  uint32_t rank = fb_count(sizes), index = fb_u32(table, TENSOR_DATA);
  const void *in_file = fb_items(sizes);
  *t = (al_tensor){.bounds = in_file, .dim_order = fb_items(fb_ref(table, TENSOR_DIM_ORDER)),
                   .dtype = (uint8_t)fb_u8(table, TENSOR_DTYPE), .rank = (uint8_t)rank,
                   .dynamic = fb_u8(table, TENSOR_DYNAMISM) != 0};
  union { const int32_t *from; int32_t *to; } read_only = {.from = t->bounds}; /* sizes of static tensors */
  t->sizes = read_only.to;
  if (t->dynamic) {
    t->sizes = *dims;
    memcpy(t->sizes, t->bounds, rank * sizeof(int32_t));
    *dims += rank;
  }
  place_tensor(m, table, t);
  if (!index) return;
  bool planned = fb_ref(table, TENSOR_ALLOCATION) != NULL;
  t->constant = !planned;
  if (!t->capacity) return;
  const uint8_t *part = al_root(program, planned ? PROGRAM_STATES : PROGRAM_CONSTANTS);
  if (planned) part = fb_item(part, 0);
  uint32_t size;
  const uint8_t *start = al_segment(program, fb_u32(part, PARTS_SEGMENT), &size);
  union { const uint8_t *from; void *to; } initial = {.from = start + fb_long(fb_ref(part, PARTS_OFFSETS), index)};
  if (planned) memcpy(t->data, initial.from, t->capacity);
  else t->data = initial.to;
}

static void init_value(const uint8_t *table, al_value *v) {
  const uint8_t *at = fb_ref(table, UNION_VALUE), *list;
  v->type = (uint8_t)fb_u8(table, UNION_TYPE);
  switch (v->type) {
    case AL_NULL: v->i = 0; break;
    case AL_INT:
    case AL_DOUBLE: v->i = (int64_t)fb_u64(at, 0); break; /* the bits of either */
    case AL_BOOLEAN: v->b = fb_u8(at, 0) != 0; break;
    default:
      list = fb_ref(at, 0);
      v->list.items = fb_items(list);
      v->list.count = fb_count(list);
  }
}

static al_status check_block(const al_block *block, uint32_t needed, al_status status, const char *name,
                             int32_t number, al_error *error) {
  if ((uintptr_t)block->data % AL_ALIGNMENT)
    return al_error_set(error, AL_MEMORY_MISALIGNED, name, number, 0, 0);
  uint32_t available = block->data ? block->size : 0;
  return available < needed ? al_error_set(error, status, name, number, needed, available) : AL_OK;
}

al_status al_method_init(al_method **result, const al_program *program, const char *method, const al_memory *memory,
                         const al_config *config, al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  *result = NULL;
  al_needs needs;
  AL_TRY(al_method_needs(program, method, config, &needs, error));
  AL_TRY(check_block(&memory->values, needs.values, AL_VALUES_TOO_SMALL, "values", -1, error));
  for (int32_t i = 0; i < AL_MAX_ARENAS; i++)
    AL_TRY(check_block(&memory->arenas[i], needs.arenas[i], AL_ARENA_TOO_SMALL, "arena", i + 1, error));
  AL_TRY(check_block(&memory->scratch, needs.scratch, AL_SCRATCH_TOO_SMALL, "scratch", -1, error));
  AL_TRY(check_block(&memory->fast_scratch, 0, AL_FAST_SCRATCH_TOO_SMALL, "fast scratch", -1, error));

  const uint8_t *plan;
  AL_TRY(find_plan(program, method, &plan, error));
  layout l = plan_layout(plan);
  al_method *m = memory->values.data;
  al_value *values = (al_value *)(void *)((uint8_t *)m + aligned(sizeof *m));
  al_tensor *tensors = (al_tensor *)(void *)(values + l.values);
  delegate *delegates = (delegate *)(void *)(tensors + l.tensors);
  const al_kernel **kernels = (const al_kernel **)(void *)(delegates + l.delegates);
  int32_t *dims = (int32_t *)(void *)(kernels + l.operators);
  const uint8_t *chain = fb_item(fb_ref(plan, PLAN_CHAINS), 0);
  *m = (al_method){.plan = plan, .instructions = fb_ref(chain, CHAIN_INSTRUCTIONS),
                   .values = values, .value_count = l.values, .kernels = kernels, .delegates = delegates,
                   .scratch = memory->scratch, .fast_scratch = memory->fast_scratch, .observer = config->observer};

  const uint8_t *operators = fb_ref(plan, PLAN_OPERATORS), *table;
  for (uint32_t i = 0; i < l.operators; i++) {
    kernels[i] = find_kernel(fb_item(operators, i), config, error);
    if (!kernels[i]) return error->status;
  }
  for (uint32_t i = 0; i < l.delegates; i++) {
    uint32_t scratch;
    table = fb_item(fb_ref(plan, PLAN_DELEGATES), i);
    AL_TRY(find_delegate(program, table, config, &delegates[i], &scratch, error));
  }
  al_error_begin(error, &spare);
  for (uint32_t i = 0; i < AL_MAX_ARENAS; i++) {
    m->arenas[i] = memory->arenas[i].data;
    if (needs.arenas[i]) memset(m->arenas[i], 0, needs.arenas[i]);
  }
  for (uint32_t i = 0; i < l.values; i++) {
    table = fb_item(fb_ref(plan, PLAN_VALUES), i);
    if (fb_u8(table, UNION_TYPE) != AL_TENSOR) {
      init_value(table, &values[i]);
      continue;
    }
    init_tensor(program, fb_ref(table, UNION_VALUE), m, tensors, &dims);
    values[i].t = tensors++;
    values[i].type = AL_TENSOR;
  }
  *result = m;
  return AL_OK;
}

static al_value *plan_value(const al_method *m, bool output, uint32_t number, uint32_t *index) {
  const uint8_t *list = fb_ref(m->plan, output ? PLAN_OUTPUTS : PLAN_INPUTS);
  if (number >= fb_count(list)) return NULL;
  *index = fb_word(list, number);
  return &m->values[*index];
}

const al_value *al_input(const al_method *method, uint32_t number) {
  uint32_t index;
  return plan_value(method, false, number, &index);
}

const al_value *al_output(const al_method *method, uint32_t number) {
  uint32_t index;
  return plan_value(method, true, number, &index);
}

/* Whether the file gives a tensor neither a place nor data. */
static bool is_unplanned(const al_method *m, uint32_t index) {
  const uint8_t *value = fb_item(fb_ref(m->plan, PLAN_VALUES), index);
  if (fb_u8(value, UNION_TYPE) != AL_TENSOR) return false;
  const uint8_t *tensor = fb_ref(value, UNION_VALUE);
  return !fb_ref(tensor, TENSOR_ALLOCATION) && !fb_u32(tensor, TENSOR_DATA);
}

/* Whether a tensor is an input or output as things are. */
static bool is_outside(const al_method *m, const al_tensor *t) {
  uint32_t index;
  const al_value *v;
  for (uint32_t output = 0; output < 2; output++) {
    for (uint32_t i = 0; (v = plan_value(m, output, i, &index)) != NULL; i++) {
      if ((v->type & ~AL_FREED) == AL_TENSOR && v->t == t) return true;
    }
  }
  return false;
}

/* Back to the file's plan: no view, and no memory of the caller but that of inputs and outputs, may live on to another
 * execution. Tensors stand in the order of their values. */
static void end_views(al_method *m) {
  al_tensor *t = (al_tensor *)(void *)(m->values + m->value_count);
  const uint8_t *values = fb_ref(m->plan, PLAN_VALUES);
  for (uint32_t i = 0; i < m->value_count; i++) {
    const uint8_t *value = fb_item(values, i);
    if (fb_u8(value, UNION_TYPE) != AL_TENSOR) continue;
    if (t->view || (t->lent && !is_outside(m, t))) place_tensor(m, fb_ref(value, UNION_VALUE), t);
    t++;
  }
}

static bool equal_scalar(const al_value *v, al_dtype dtype, uint32_t rank, const void *data, size_t bytes) {
  switch (v->type) {
    case AL_NULL: return data == NULL;
    case AL_INT:
    case AL_DOUBLE:
      return dtype == (v->type == AL_INT ? AL_I64 : AL_F64) && rank == 0 && bytes == 8 && !memcmp(data, &v->i, 8);
    case AL_BOOLEAN: return dtype == AL_BOOL && rank == 0 && bytes == 1 && *(const uint8_t *)data == v->b;
    case AL_STRING:
      return dtype == AL_U8 && rank == 1 && bytes == v->list.count && (!bytes || !memcmp(data, v->list.items, bytes));
    default: return false;
  }
}

al_status al_set_input(al_method *method, uint32_t number, al_dtype dtype, uint32_t rank, const int32_t *sizes,
                       const void *data, size_t bytes, al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  uint32_t index, available = fb_count(fb_ref(method->plan, PLAN_INPUTS));
  const al_value *v = plan_value(method, false, number, &index);
  error->argument = (int32_t)number;
  error->name = "input";
  error->name_size = 5;
  if (!v) return al_error_set(error, AL_INPUT_COUNT, "input", (int32_t)number, number + 1, available);
  if (v->type != AL_TENSOR) {
    error->status = equal_scalar(v, dtype, rank, data, bytes) ? AL_OK : AL_INPUT_VALUE;
    return error->status;
  }
  al_tensor *t = v->t;
  if (t->view) end_views(method);
  if (dtype != t->dtype) return error->status = AL_INPUT_TYPE;
  if (rank != t->rank) return error->status = AL_INPUT_SHAPE;
  uint32_t wanted = al_dtype_size(dtype);
  for (uint32_t i = 0; i < rank; i++) {
    if (sizes[i] < 0 || (t->dynamic ? sizes[i] > t->bounds[i] : sizes[i] != t->sizes[i]))
      return error->status = AL_INPUT_SHAPE;
    wanted *= (uint32_t)sizes[i];
  }
  if (wanted != bytes) return al_error_set(error, AL_INPUT_SHAPE, "input", (int32_t)number, wanted, (uint32_t)bytes);
  bool borrow = is_unplanned(method, index);
  if (borrow && wanted && (uintptr_t)data % al_dtype_size(dtype)) return error->status = AL_MEMORY_MISALIGNED;
  if (!borrow && wanted > t->capacity) return al_error_set(error, AL_INPUT_SHAPE, "input", (int32_t)number, wanted, t->capacity);
  if (!borrow && wanted && (!t->data || t->constant)) return error->status = t->data ? AL_CONSTANT : AL_UNBOUND;
  if (t->dynamic) memcpy(t->sizes, sizes, rank * sizeof *sizes);
  if (borrow && wanted) {
    union { const void *from; void *to; } borrowed = {.from = data};
    t->data = borrowed.to;
    t->capacity = wanted;
    t->constant = t->lent = true;
  } else if (wanted) {
    memcpy(t->data, data, bytes);
  }
  return AL_OK;
}

al_status al_bind(al_method *method, bool output, uint32_t number, void *data, size_t bytes, al_error *error) {
  al_error spare;
  error = al_error_begin(error, &spare);
  const char *name = output ? "output" : "input";
  uint32_t index;
  const al_value *v = plan_value(method, output, number, &index);
  al_error_set(error, AL_INPUT_COUNT, name, (int32_t)number, 0, 0);
  if (!v) return error->status;
  if (v->type != AL_TENSOR || !is_unplanned(method, index)) return error->status = AL_INPUT_TYPE;
  al_tensor *t = v->t;
  uint32_t wanted = al_dtype_size((al_dtype)t->dtype);
  if ((uintptr_t)data % wanted) return error->status = AL_MEMORY_MISALIGNED;
  for (uint32_t i = 0; i < t->rank; i++) wanted *= (uint32_t)t->bounds[i];
  if (wanted > bytes) return al_error_set(error, AL_ARENA_TOO_SMALL, name, (int32_t)number, wanted, (uint32_t)bytes);
  t->data = wanted ? data : t;
  t->capacity = wanted;
  t->constant = t->view = false;
  t->lent = true;
  return error->status = AL_OK;
}

static al_status condition(al_call *call, uint32_t index, bool *holds) {
  const al_value *v = &call->values[index];
  if (v->type == AL_BOOLEAN) {
    *holds = v->b;
    return AL_OK;
  }
  int32_t argument = (int32_t)index;
  call->args = &argument;
  call->arg_count = 1;
  const al_tensor *t = al_tensor_arg(call, 0);
  AL_RETURN_IF_FAILED(call);
  if (t->dtype != AL_BOOL) return al_fail(call, AL_DTYPE, 0);
  const uint8_t *data = t->data;
  *holds = true;
  for (uint32_t i = 0; i < al_numel(t); i++) *holds = *holds && data[i];
  return AL_OK;
}

static void observe(const al_method *m, bool begins, const al_error *error) {
  if (m->observer.event)
    m->observer.event(m->observer.state, begins, (uint32_t)error->instruction, error->name, error->name_size);
}

/* One instruction at error->instruction; moves it to the next one. */
static al_status step(al_method *m, al_error *error) {
  const uint8_t *instruction = fb_item(m->instructions, (uint32_t)error->instruction);
  const uint8_t *at = fb_ref(instruction, UNION_VALUE);
  uint32_t type = fb_u8(instruction, UNION_TYPE), first = fb_u32(at, 0);
  uint32_t second = type == INSTRUCTION_FREE ? 0 : fb_u32(at, 1); /* only fields of the schema were checked */
  int32_t next = error->instruction + 1;
  al_call call = {.values = m->values, .value_count = m->value_count, .error = error, .scratch = m->scratch,
                  .fast_scratch = m->fast_scratch};
  static const char *const names[] = {"move", "jump", "free"};
  error->name = type == INSTRUCTION_KERNEL ? m->kernels[first]->name
              : type == INSTRUCTION_DELEGATE ? m->delegates[first].backend->id : names[type - INSTRUCTION_MOVE];
  error->name_size = (uint32_t)strlen(error->name);
  observe(m, true, error);
  al_status status = AL_OK;
  if (type <= INSTRUCTION_DELEGATE) {
    const uint8_t *args = fb_ref(at, CALL_ARGS);
    call.args = (const int32_t *)(const void *)fb_items(args);
    call.arg_count = fb_count(args);
    if (type == INSTRUCTION_KERNEL) {
      status = m->kernels[first]->run(&call);
    } else {
      const delegate *d = &m->delegates[first];
      status = d->backend->run(d->backend->state, d->data, d->size, &call);
    }
  } else if (type == INSTRUCTION_MOVE) {
    m->values[second] = m->values[first];
  } else if (type == INSTRUCTION_FREE) {
    m->values[first].type |= AL_FREED;
  } else {
    bool holds = false;
    status = condition(&call, first, &holds);
    if (!holds) next = (int32_t)second;
  }
  observe(m, false, error);
  if (call.status) status = call.status;
  error->status = status;
  if (!status) error->instruction = next;
  return status;
}

static al_status run(al_method *m, al_error *error) {
  uint32_t count = fb_count(m->instructions), steps = 0;
  for (error->instruction = 0; (uint32_t)error->instruction < count;) {
    if (steps++ == AL_INSTRUCTION_LIMIT) return al_error_set(error, AL_ENDLESS, NULL, -1, 0, 0);
    AL_TRY(step(m, error));
  }
  al_error_begin(error, error);
  uint32_t index;
  const al_value *v;
  for (uint32_t i = 0; (v = plan_value(m, true, i, &index)) != NULL; i++) {
    if ((v->type & AL_FREED) || (v->type == AL_TENSOR && !v->t->data))
      return al_error_set(error, AL_UNBOUND, "output", (int32_t)i, 0, 0);
  }
  return AL_OK;
}

al_status al_execute(al_method *method, al_error *error) {
  al_error spare;
  end_views(method);
  al_status status = run(method, al_error_begin(error, &spare));
  for (uint32_t i = 0; i < method->value_count; i++) method->values[i].type &= (uint8_t)~AL_FREED;
  return status;
}
