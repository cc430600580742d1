/* The board's NPU, or the model of the host where none answers. Linked if the program has delegates for it. */
#include "cosim.h"
#include "port.h"

static al_ethosu_pmu pmu;
static al_ethosu_driver driver = {.base = AL_NPU_BASE, .pmu = &pmu};
static al_ethosu_cosim cosim;
static al_ethosu ethosu;

al_backend al_npu_backends[1];

void al_npu_setup(const char *requests, const char *replies) {
  uint32_t id = al_ethosu_probe(&driver);
  cosim.request = requests;
  cosim.reply = replies;
  al_npu_backends[0] = al_ethosu_backend(&ethosu, al_ethosu_choose(&driver, &cosim));
  al_puts("al npu id=");
  al_put_hex(id);
  al_puts(id ? " by=registers\n" : requests ? " by=host\n" : " by=none\n");
}

uint64_t al_npu_cycles(void) {
  uint64_t cycles = pmu.cycles;
  pmu.cycles = 0;
  return cycles;
}
