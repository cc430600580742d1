/* What the build generates for one application: its memory, model, kernels and backends. */
#ifndef AL_APP_H
#define AL_APP_H

#include "arm_lower.h"

typedef struct al_app {
  const char *board;
  const void *model;      /* NULL if the command line says where it is (-m ADDRESS,BYTES) */
  uint32_t model_bytes;
  al_memory memory;
  al_block io;            /* inputs and outputs that are not planned */
  al_config config;       /* without observer */
  struct al_profile *profile; /* one for each instruction of the method */
  uint32_t profile_count;
} al_app;

typedef struct al_profile {
  uint64_t instructions, cycles; /* sums over all calls */
  uint32_t calls;
  const char *name;
  uint32_t name_size;
} al_profile;

/* Not const: an application may fill in the state of a backend before it starts. */
extern al_app al_application;

#endif
