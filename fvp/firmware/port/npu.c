/* The board's NPU, or the model of the host where none answers. Linked if the program has delegates for it. */
#include "cosim.h"
#include "port.h"

static al_ethosu_pmu pmu;
static al_ethosu_driver driver = {.base = AL_NPU_BASE, .pmu = &pmu};
static al_ethosu_cosim cosim;
static al_ethosu ethosu;

al_backend al_npu_backends[1];

#ifdef AL_NPU_INTERRUPT
#define NVIC_ISER ((volatile uint32_t *)0xe000e100)

void al_npu_interrupt(void); /* in the vector table */
void al_npu_interrupt(void) { al_ethosu_interrupt(&driver); }

static void enable_interrupt(void) {
  driver.sleep = al_ethosu_wfe;
  NVIC_ISER[AL_NPU_IRQ / 32] = 1u << AL_NPU_IRQ % 32;
}
#else
static void enable_interrupt(void) {} /* the driver polls */
#endif

void al_npu_setup(const char *requests, const char *replies) {
  uint32_t id = al_ethosu_probe(&driver);
  if (id) enable_interrupt();
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
