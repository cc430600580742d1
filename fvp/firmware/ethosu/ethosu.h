/* Delegates of Arm Ethos-U NPUs ("EthosUBackend"): the data of one call, and who executes it.
 *
 *     backend.c  checks the delegate's data and the tensors, copies inputs and outputs
 *     payload.c  what the driver payload inside says: for which NPU, which commands
 *     driver.c   executes on a real NPU, by its registers (driver.h)
 *     cosim.c    executes on the host's NPU model, over semihosting (cosim.h)
 *
 * An application for a board with an NPU needs the first three:
 *
 *     static al_ethosu_driver driver = {.base = 0x58102000};
 *     static al_ethosu ethosu;
 *     al_backend backend = al_ethosu_backend(&ethosu, al_ethosu_driver_npu(&driver));
 */
#ifndef AL_ETHOSU_H
#define AL_ETHOSU_H

#include "arm_lower.h"

/* One call. All addresses are multiples of 16. */
typedef struct al_ethosu_job {
  const void *commands; /* driver payload; checked by al_ethosu_parse */
  uint32_t command_bytes;
  const void *weights;  /* NPU region 0, may be NULL */
  uint32_t weight_bytes;
  void *scratch;        /* NPU region 1, holds the inputs, afterwards the outputs */
  uint32_t scratch_bytes;
  void *fast_scratch;   /* NPU region 2, may be NULL */
  uint32_t fast_scratch_bytes;
} al_ethosu_job;

/* Whoever executes jobs. On failure `text` may get a sentence with details: terminated, at most text_size - 1 long;
 * it is empty before. */
typedef struct al_npu {
  al_status (*run)(void *state, const al_ethosu_job *job, char *text, size_t text_size);
  void *state;
} al_npu;

/* State of the backend. */
typedef struct al_ethosu {
  al_npu npu;
  char text[160]; /* details of the last failure; al_error.name points to it */
} al_ethosu;

al_backend al_ethosu_backend(al_ethosu *state, al_npu npu);

/* What a driver payload (COP1 or COP2) says. */
typedef struct al_ethosu_payload {
  uint32_t config;        /* of the NPU it was compiled for: [3:0] log2 of MACs, [31:28] 0 U55, 1 U65, 2 U85 */
  uint32_t id;            /* architecture: [31:28] major, [27:20] minor, [19:16] patch, as in the ID register */
  const uint32_t *stream; /* register commands */
  uint32_t stream_bytes;
  uint32_t regions;       /* bit n: some command uses NPU region n */
} al_ethosu_payload;

/* AL_DELEGATE_CORRUPT, or AL_FILE_UNSUPPORTED for what only other drivers do. `commands` is 4-byte aligned. */
al_status al_ethosu_parse(const void *commands, uint32_t bytes, al_ethosu_payload *payload);

#endif
