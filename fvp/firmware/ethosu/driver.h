/* Ethos-U55, U65 and U85 by their registers. */
#ifndef AL_ETHOSU_DRIVER_H
#define AL_ETHOSU_DRIVER_H

#include "ethosu.h"

#define AL_ETHOSU_EVENTS 8 /* event counters: 4 on U55 and U65, 8 on U85 */

/* Performance counters of the last call. */
typedef struct al_ethosu_pmu {
  uint16_t events[AL_ETHOSU_EVENTS]; /* in: event numbers, as in the product's manual */
  uint32_t event_count;              /* in: how many; what the NPU does not have stays 0 */
  uint32_t counters[AL_ETHOSU_EVENTS];
  uint64_t cycles; /* NPU clock */
} al_ethosu_pmu;

/* Which memory port each region uses, and how. The words are those of the registers. */
typedef struct al_ethosu_axi {
  uint32_t queue;     /* QCONFIG: port setting of the command stream */
  uint32_t regions;   /* REGIONCFG: two bits for each region */
  uint32_t limits[6]; /* U55, U65: AXI_LIMIT0..3; U85: MEM_ATTR0..3, AXI_SRAM, AXI_EXT */
} al_ethosu_axi;

/* All members but base may be zero. */
typedef struct al_ethosu_driver {
  uintptr_t base;           /* address of the registers, 0 if there is no NPU */
  bool non_secure, user;    /* how the NPU accesses memory; as secure and privileged if false */
  const al_ethosu_axi *axi; /* NULL: weights at the slow memory's port, the rest as the product's default */
  uint32_t limit;           /* status reads, or returns of `sleep`, until AL_NPU_TIMEOUT; 0: 50 million */
  al_ethosu_pmu *pmu;       /* NULL: do not count */
  /* NULL: the driver polls, and the NPU's interrupt must be disabled. Otherwise the interrupt's handler calls
   * al_ethosu_interrupt, and this function waits for any interrupt (al_ethosu_wfe); it returns false to give up. */
  bool (*sleep)(void *hook_state);
  /* For CPUs with a data cache (al_ethosu_scb_clean, al_ethosu_scb_invalidate), else NULL. `clean` writes dirty lines
   * back and forgets them; `invalidate` forgets lines. Scratch memory must not share a cache line with anything. */
  void (*clean)(const void *address, uint32_t bytes);
  void (*invalidate)(void *address, uint32_t bytes);
  uint64_t (*bus_address)(const void *address); /* where the NPU sees memory; NULL: where the CPU sees it */
  void *hook_state;
  volatile bool interrupted; /* set by al_ethosu_interrupt */
  volatile uint32_t status;  /* last STATUS word */
} al_ethosu_driver;

/* ID register: [31:28] architecture major, [27:20] minor, [19:16] patch, [15:12] product (4 U55, 6 U65, 7 U85),
 * [11:8] R, [7:4] P of RnPn. 0 if no NPU answers. */
uint32_t al_ethosu_probe(const al_ethosu_driver *driver);
al_npu al_ethosu_driver_npu(al_ethosu_driver *driver);
void al_ethosu_interrupt(al_ethosu_driver *driver);

#ifdef __arm__
/* For `sleep`: until the next event or interrupt. Only another interrupt, of a timer, ends it if the NPU's gets lost. */
bool al_ethosu_wfe(void *hook_state);
/* Armv7-M and later, by the System Control Block; nothing happens if the data cache is off. */
void al_ethosu_scb_clean(const void *address, uint32_t bytes);
void al_ethosu_scb_invalidate(void *address, uint32_t bytes);
#endif

#endif
