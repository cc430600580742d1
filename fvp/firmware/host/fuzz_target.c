/* Loads and executes bytes as a program, with every kernel and with the Ethos-U backend on an NPU that only touches its
 * memory. Under AddressSanitizer and UndefinedBehaviorSanitizer nothing may be found, whatever the bytes are. */
#include "fuzz.h"

#include <stdlib.h>

#include "host.h"

enum { MOST_METHODS = 3, MOST_MEMORY = 1 << 18, TEMP = 1 << 16 };

static uint32_t touched;

static int32_t touch(void *state, const al_ethosu_job *job, char *text, size_t text_size) {
  (void)state, (void)text, (void)text_size;
  for (uint32_t i = 0; i < job->command_bytes; i++) touched += ((const uint8_t *)job->commands)[i];
  for (uint32_t i = 0; i < job->weight_bytes; i++) touched += ((const uint8_t *)job->weights)[i];
  for (uint32_t i = 0; i < job->scratch_bytes; i++) ((uint8_t *)job->scratch)[i] ^= 0x55;
  for (uint32_t i = 0; i < job->fast_scratch_bytes; i++) ((uint8_t *)job->fast_scratch)[i] ^= 0x55;
  return AL_OK;
}

static void fill(const al_value *v, uint32_t seed) {
  if (v->type != AL_TENSOR || !v->t->data || v->t->constant) return;
  uint8_t *data = v->t->data;
  for (uint32_t i = 0, n = al_nbytes(v->t); i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (uint8_t)(seed >> 24);
  }
}

/* Sets a dynamic input to smaller sizes, so that kernels have to resize. */
static void shrink(al_method *method, uint32_t number, uint32_t by) {
  const al_value *v = al_input(method, number);
  static const uint8_t zeros[MOST_MEMORY];
  if (v->type != AL_TENSOR || !v->t->dynamic) return;
  int32_t sizes[AL_MAX_RANK];
  uint32_t bytes = al_dtype_size((al_dtype)v->t->dtype);
  for (uint32_t i = 0; i < v->t->rank; i++) {
    sizes[i] = v->t->bounds[i] > (int32_t)by ? v->t->bounds[i] - (int32_t)by : v->t->bounds[i];
    bytes *= (uint32_t)sizes[i];
  }
  if (bytes <= sizeof zeros)
    al_set_input(method, number, (al_dtype)v->t->dtype, v->t->rank, sizes, zeros, bytes, NULL);
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
  al_host_options options = {.temp = TEMP, .fast_scratch = 1024, .npu = touch, .most_memory = MOST_MEMORY};
  al_host *h = al_host_open(data, size, name, &options, &error);
  al_method *m = al_host_method(h);
  if (m && !al_host_bind(h, &error)) {
    for (uint32_t run = 0; run < 2; run++) {
      for (uint32_t i = 0; al_input(m, i); i++) {
        shrink(m, i, run);
        fill(al_input(m, i), i + run);
      }
      if (al_execute(m, &error)) break;
      for (uint32_t i = 0; al_output(m, i); i++) read_all(al_output(m, i));
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
