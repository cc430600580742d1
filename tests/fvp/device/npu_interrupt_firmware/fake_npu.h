/* The registers of an NPU at AL_NPU_BASE, by software: each access to them ends in a fault, which executes it. */
#ifndef FAKE_NPU_H
#define FAKE_NPU_H

#include <stdbool.h>
#include <stdint.h>

#define MILLISECOND 32000u /* in ticks */

/* Bits of STATUS. */
enum { RUNNING = 1 << 0, IRQ = 1 << 1, BUS = 1 << 2, PARSE = 1 << 4, END = 1 << 5 };
enum { WEIGHTS = 1 << 7, ECC = 1 << 8, BRANCH = 1 << 9 };

/* `after` ticks (about an instruction each) from the start, or from the step before, STATUS is that. */
typedef struct fake_step {
  uint32_t after, status;
} fake_step;

extern struct fake_npu {
  const fake_step *steps; /* of the next run */
  uint32_t count;
  bool lags;           /* the line falls late, so that the handler runs once more */
  uint32_t status;
  uint32_t runs;       /* starts */
  uint32_t interrupts; /* CMD_CLEAR_IRQ writes in the NPU's exception */
  const char *misuse;  /* what no driver should do, or NULL */
} fake_npu;

void fake_npu_install(void);
void fake_npu_update(void); /* after a change of the status by hand */
bool fake_npu_pending(void);
void fake_npu_watch(uint32_t ms, void (*bark)(void)); /* calls it after that time, unless set again; 0: never */

#endif
