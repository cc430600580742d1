/* What the build generates for one application: its memory, model, kernels and backends (fvp/builder.py). */
#ifndef AL_APP_H
#define AL_APP_H

#include "arm_lower.h"

/* Cycles of multiplying, data beats read at the NPU's first memory port, written there, read at the second. */
#define AL_NPU_EVENTS 4

/* Sums over all calls of one instruction of the method. */
typedef struct al_profile {
  uint64_t instructions, cycles, npu_cycles;
  uint64_t npu_events[AL_NPU_EVENTS];
  uint32_t calls;
  uint32_t name_size;
  const char *name;
} al_profile;

typedef struct al_app {
  const char *board;
  const void *model; /* NULL if the command line says where it is (-m ADDRESS,BYTES) */
  uint32_t model_bytes;
  al_memory memory;
  al_block io;       /* for inputs and outputs that are not planned */
  al_config config;  /* without observer */
  al_profile *profile;
  uint32_t profile_count;
} al_app;

extern al_app al_application;

#endif
