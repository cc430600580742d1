/* The Ethos-U backend for ctypes: plain numbers and pointers instead of the runtime's structures. */
#include "al_kernel.h"
#include "ethosu.h"

#include <string.h>

enum { MAX_TENSORS = 8 };

typedef struct shim_tensor {
  void *data;
  int32_t size;     /* elements; the tensor has one dimension */
  uint32_t dtype;
  uint32_t constant;
} shim_tensor;

typedef struct shim_result {
  int32_t argument;
  uint32_t needed, available;
  char text[320]; /* al_error_text */
} shim_result;

typedef int32_t (*shim_npu)(const al_ethosu_job *job, char *text, size_t size);

static al_status run_npu(void *state, const al_ethosu_job *job, char *text, size_t size) {
  return (al_status)(*(shim_npu *)state)(job, text, size);
}

int32_t shim_check(const void *data, uint32_t size, uint32_t *scratch) {
  al_ethosu state;
  al_backend backend = al_ethosu_backend(&state, (al_npu){run_npu, NULL});
  return (int32_t)backend.check(backend.state, data, size, scratch);
}

uint32_t shim_regions(const void *commands, uint32_t size) {
  al_ethosu_payload payload;
  return al_ethosu_parse(commands, size, &payload) ? ~0u : payload.regions;
}

int32_t shim_run(const void *data, uint32_t size, const shim_tensor *tensors, uint32_t count, void *scratch,
                 uint32_t scratch_bytes, void *fast, uint32_t fast_bytes, shim_npu npu, shim_result *result) {
  static const uint8_t order[1] = {0};
  al_ethosu state;
  al_backend backend = al_ethosu_backend(&state, (al_npu){run_npu, &npu});
  al_error error = {.instruction = -1, .argument = -1, .name = backend.id, .name_size = (uint32_t)strlen(backend.id)};
  al_tensor t[MAX_TENSORS];
  al_value values[MAX_TENSORS];
  int32_t args[MAX_TENSORS], sizes[MAX_TENSORS];
  for (uint32_t i = 0; i < count; i++) {
    sizes[i] = tensors[i].size;
    t[i] = (al_tensor){.data = tensors[i].data, .sizes = &sizes[i], .bounds = &sizes[i], .dim_order = order,
                       .dtype = (uint8_t)tensors[i].dtype, .rank = 1, .constant = tensors[i].constant != 0};
    t[i].capacity = al_nbytes(&t[i]);
    values[i] = (al_value){.t = &t[i], .type = AL_TENSOR};
    args[i] = (int32_t)i;
  }
  al_call call = {.args = args, .arg_count = count, .values = values, .value_count = count, .error = &error,
                  .scratch = {scratch, scratch_bytes}, .fast_scratch = {fast, fast_bytes}};
  al_status status = backend.run(backend.state, data, size, &call);
  error.status = status;
  result->argument = error.argument;
  result->needed = error.needed;
  result->available = error.available;
  al_error_text(&error, result->text, sizeof result->text);
  return (int32_t)(call.status ? call.status : status);
}
