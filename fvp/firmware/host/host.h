/* The runtime on the host, for tests and fuzzing: memory from malloc in exactly the sizes that a method says it needs
 * (so that AddressSanitizer sees every byte beyond), all kernels, delegates by function pointer. */
#ifndef AL_HOST_H
#define AL_HOST_H

#include "al_kernel.h"
#include "ethosu.h"

/* Executes a delegate: `tensors` are the inputs, then the outputs. */
typedef int32_t (*al_host_delegate)(uint32_t id, int32_t instruction, const void *data, uint32_t size,
                                    al_tensor *const *tensors, uint32_t count);
typedef int32_t (*al_host_npu)(void *state, const al_ethosu_job *job, char *text, size_t text_size);

typedef struct al_host_options {
  uint32_t fast_scratch;                             /* bytes */
  uint32_t less_values, less_arena, less_scratch;    /* bytes taken away from what is needed, for tests */
  uint32_t most_memory;                              /* refuse to allocate a block of more; 0: no limit */
  uint32_t delegate_count;
  const char *const *delegate_ids;
  al_host_delegate delegate; /* executes delegates of these ids */
  al_host_npu npu;           /* not NULL: EthosUBackend in C, with this as the NPU */
} al_host_options;

typedef struct al_host al_host;

/* `pte` is copied to memory of exactly its size. On failure al_host_method is NULL; `error` may name things in that
 * copy, so its text must be taken before al_host_close. */
al_host *al_host_open(const void *pte, size_t size, const char *method, const al_host_options *options,
                      al_error *error);
void al_host_close(al_host *host);
al_method *al_host_method(al_host *host);
const al_needs *al_host_needs(const al_host *host);
/* Gives memory to inputs and outputs that have none: as many bytes as their largest sizes. */
al_status al_host_bind(al_host *host, al_error *error);
uint32_t al_host_value_size(void); /* sizeof(al_value), to compare with the mirror of it in Python */
uint32_t al_host_tensor_size(void);

/* Generated: fvp/native.py */
extern const al_kernel al_kernels[];
extern const uint32_t al_kernel_count;

#endif
