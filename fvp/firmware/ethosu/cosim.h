/* Executes jobs on the NPU model that runs on the host: for QEMU, which has no Ethos-U. */
#ifndef AL_ETHOSU_COSIM_H
#define AL_ETHOSU_COSIM_H

#include "driver.h"

/* Names of two FIFOs on the host. Zero-initialise the rest. */
typedef struct al_ethosu_cosim {
  const char *request, *reply;
  bool open;
  int request_handle, reply_handle;
} al_ethosu_cosim;

al_npu al_ethosu_cosim_npu(al_ethosu_cosim *cosim);

/* The NPU if one answers, else the host's model if there are FIFOs, else one that reports AL_NPU_MISSING. Both may be
 * NULL. */
al_npu al_ethosu_choose(al_ethosu_driver *driver, al_ethosu_cosim *cosim);

#endif
