/* Loads and executes bytes as a program, with every kernel and with the Ethos-U backend on an NPU that only touches its
 * memory. Under AddressSanitizer and UndefinedBehaviorSanitizer nothing may be found, whatever the bytes are. */
#include "fuzz.h"

#include <stdlib.h>

#include "host.h"

enum { MOST_METHODS = 3, MOST_MEMORY = 1 << 18 };

static uint32_t touched;

static int32_t touch(void *state, const al_ethosu_job *job, char *text, size_t text_size) {
  (void)state, (void)text, (void)text_size;
  for (uint32_t i = 0; i < job->command_bytes; i++) touched += ((const uint8_t *)job->commands)[i];
  for (uint32_t i = 0; i < job->weight_bytes; i++) touched += ((const uint8_t *)job->weights)[i];
  for (uint32_t i = 0; i < job->scratch_bytes; i++) ((uint8_t *)job->scratch)[i] ^= 0x55;
  for (uint32_t i = 0; i < job->fast_scratch_bytes; i++) ((uint8_t *)job->fast_scratch)[i] ^= 0x55;
  return AL_OK;
}

enum { MOST_INPUTS = 16 };

/* Sets an input to pseudo-random bytes, in memory of its own that is freed after the run; dynamic ones in every other
 * run to smaller sizes, so that kernels have to resize. */
static void *set_input(al_method *method, uint32_t number, uint32_t run) {
  const al_value *v = al_input(method, number);
  if (v->type != AL_TENSOR) return NULL;
  int32_t sizes[AL_MAX_RANK];
  uint64_t bytes = al_dtype_size((al_dtype)v->t->dtype);
  for (uint32_t i = 0; i < v->t->rank; i++) {
    sizes[i] = v->t->dynamic ? v->t->bounds[i] : v->t->sizes[i];
    if (v->t->dynamic && sizes[i] > (int32_t)run) sizes[i] -= (int32_t)run;
    bytes *= (uint32_t)sizes[i];
  }
  if (bytes > MOST_MEMORY) return NULL;
  uint8_t *data = malloc(bytes + !bytes);
  uint32_t seed = number + 7 * run;
  for (uint32_t i = 0; i < bytes; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (uint8_t)(seed >> 24);
  }
  al_set_input(method, number, (al_dtype)v->t->dtype, v->t->rank, sizes, data, bytes, NULL);
  return data;
}

static void read_all(const al_value *v) {
  if (v->type != AL_TENSOR) return;
  uint32_t n = al_nbytes(v->t);
  if (v->t->dtype == AL_I64 && v->t->rank == 1 && getenv("AL_FUZZ_FAULT")) n += 1u << 20; /* the fuzzer's own test */
  for (uint32_t i = 0; i < n; i++) touched += ((const uint8_t *)v->t->data)[i];
}

static void run_method(const uint8_t *data, size_t size, const char *name) {
  al_error error;
  char text[64];
  al_host_options options = {.fast_scratch = 1024, .npu = touch, .most_memory = MOST_MEMORY};
  al_host *h = al_host_open(data, size, name, &options, &error);
  al_method *m = al_host_method(h);
  if (m && !al_host_bind(h, &error)) {
    for (uint32_t run = 0; run < 3; run++) {
      void *lent[MOST_INPUTS] = {NULL};
      for (uint32_t i = 0; i < MOST_INPUTS && al_input(m, i); i++) lent[i] = set_input(m, i, run);
      bool good = !al_execute(m, &error);
      for (uint32_t i = 0; good && al_output(m, i); i++) read_all(al_output(m, i));
      for (uint32_t i = 0; i < MOST_INPUTS; i++) free(lent[i]);
      if (!good && run == 0) break;
    }
  }
  al_error_text(&error, text, sizeof text);
  al_host_close(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  /* Aligned and of exactly this size, as the file must be. */
  void *file = NULL;
  if (size == 0 || posix_memalign(&file, AL_ALIGNMENT, size)) return 0;
  memcpy(file, data, size);
  al_program program;
  if (!al_program_load(&program, file, size, NULL)) {
    for (uint32_t i = 0; i < MOST_METHODS && i < al_program_methods(&program); i++) {
      uint32_t length;
      const char *name = al_program_method_name(&program, i, &length);
      char *terminated = calloc(1, (size_t)length + 1);
      if (!terminated) abort();
      memcpy(terminated, name, length);
      run_method(data, size, i ? terminated : NULL);
      free(terminated);
    }
  }
  free(file);
  return 0;
}
