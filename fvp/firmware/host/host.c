#include "host.h"

#include <stdlib.h>
#include <string.h>

typedef struct python_backend {
  al_host_delegate run;
  uint32_t id;
} python_backend;

typedef struct bound {
  struct bound *next;
  max_align_t data[];
} bound;

struct al_host {
  void *pte;
  al_program program;
  al_memory memory;
  al_needs needs;
  al_config config;
  al_backend *backends;
  python_backend *states;
  al_ethosu ethosu;
  al_method *method;
  bound *bound;
  uint32_t most_memory;
};

static al_status check(void *state, const void *data, uint32_t size, uint32_t *scratch) {
  (void)state, (void)data, (void)size;
  *scratch = 0;
  return AL_OK;
}

static al_status run(void *state, const void *data, uint32_t size, al_call *call) {
  const python_backend *b = state;
  al_tensor **tensors = calloc(call->arg_count + 1u, sizeof *tensors);
  for (uint32_t i = 0; tensors && i < call->arg_count; i++) tensors[i] = (al_tensor *)(uintptr_t)al_tensor_arg(call, i);
  al_status status = call->status;
  if (!status)
    status = tensors ? (al_status)b->run(b->id, call->error->instruction, data, size, tensors, call->arg_count)
                     : AL_HOST_GONE;
  free(tensors);
  return status;
}

static al_status run_npu(void *state, const al_ethosu_job *job, char *text, size_t text_size) {
  union { void *data; al_host_npu function; } npu = {.data = state};
  return (al_status)npu.function(NULL, job, text, text_size);
}

/* Blocks of exactly this size at a 16-byte aligned address; none of no bytes. */
static al_block block(uint32_t size) {
  void *data = NULL;
  if (!size || posix_memalign(&data, AL_ALIGNMENT, size)) return (al_block){NULL, 0};
  memset(data, 0xA5, size);
  return (al_block){data, size};
}

static uint32_t less(uint32_t size, uint32_t by) { return size > by ? size - by : 0; }

static al_status open_method(al_host *h, size_t size, const char *method, const al_host_options *o, al_error *error) {
  AL_TRY(al_program_load(&h->program, h->pte, size, error));
  AL_TRY(al_method_needs(&h->program, method, &h->config, &h->needs, error));
  uint32_t most = h->needs.values > h->needs.scratch ? h->needs.values : h->needs.scratch;
  for (uint32_t i = 0; i < AL_MAX_ARENAS; i++) most = h->needs.arenas[i] > most ? h->needs.arenas[i] : most;
  if (o->most_memory && most > o->most_memory) return error->status = AL_ARENA_TOO_SMALL;
  h->memory.values = block(less(h->needs.values, o->less_values));
  for (uint32_t i = 0; i < AL_MAX_ARENAS; i++) h->memory.arenas[i] = block(less(h->needs.arenas[i], o->less_arena));
  h->memory.scratch = block(less(h->needs.scratch, o->less_scratch));
  h->memory.fast_scratch = block(o->fast_scratch);
  return al_method_init(&h->method, &h->program, method, &h->memory, &h->config, error);
}

al_host *al_host_open(const void *pte, size_t size, const char *method, const al_host_options *o, al_error *error) {
  al_host *h = calloc(1, sizeof *h);
  if (!h || posix_memalign(&h->pte, AL_ALIGNMENT, size ? size : 1)) abort();
  if (size) memcpy(h->pte, pte, size);
  h->backends = calloc(o->delegate_count + 1u, sizeof *h->backends);
  h->states = calloc(o->delegate_count + 1u, sizeof *h->states);
  if (!h->backends || !h->states) abort();
  for (uint32_t i = 0; i < o->delegate_count; i++) {
    h->states[i] = (python_backend){o->delegate, i};
    h->backends[i] = (al_backend){o->delegate_ids[i], &h->states[i], check, run};
  }
  uint32_t count = o->delegate_count;
  if (o->npu) {
    union { al_host_npu function; void *data; } npu = {.function = o->npu};
    h->backends[count++] = al_ethosu_backend(&h->ethosu, (al_npu){run_npu, npu.data});
  }
  h->most_memory = o->most_memory;
  h->config = (al_config){al_kernels, al_kernel_count, h->backends, count, {NULL, NULL}};
  if (open_method(h, size, method, o, error)) h->method = NULL;
  return h;
}

void al_host_close(al_host *h) {
  free(h->memory.values.data);
  for (uint32_t i = 0; i < AL_MAX_ARENAS; i++) free(h->memory.arenas[i].data);
  free(h->memory.scratch.data);
  free(h->memory.fast_scratch.data);
  for (bound *b = h->bound, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(h->backends);
  free(h->states);
  free(h->pte);
  free(h);
}

al_method *al_host_method(al_host *h) { return h->method; }

const al_needs *al_host_needs(const al_host *h) { return &h->needs; }

static al_status bind_side(al_host *h, bool output, uint32_t count, al_error *error) {
  for (uint32_t i = 0; i < count; i++) {
    const al_value *v = output ? al_output(h->method, i) : al_input(h->method, i);
    if (v->type != AL_TENSOR || v->t->data) continue;
    size_t bytes = al_dtype_size((al_dtype)v->t->dtype);
    for (uint32_t k = 0; k < v->t->rank; k++) bytes *= (size_t)v->t->bounds[k];
    if (h->most_memory && bytes > h->most_memory) continue; /* stays without memory */
    bound *b = calloc(1, sizeof *b + bytes);
    if (!b) abort();
    b->next = h->bound;
    h->bound = b;
    al_status status = al_bind(h->method, output, i, b->data, bytes, error);
    if (status && status != AL_INPUT_TYPE) return status; /* the view of another tensor gets its memory later */
  }
  return AL_OK;
}

al_status al_host_bind(al_host *h, al_error *error) {
  AL_TRY(bind_side(h, false, h->needs.input_count, error));
  return bind_side(h, true, h->needs.output_count, error);
}

uint32_t al_host_value_size(void) { return sizeof(al_value); }

uint32_t al_host_tensor_size(void) { return sizeof(al_tensor); }
