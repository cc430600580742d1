/* The board's NPU, or the model of the host where none answers. Linked if the program has delegates for it. */
#include "app.h"
#include "cosim.h"
#include "port.h"

/* MAC_ACTIVE; data beats at the ports: AXI0 and AXI1, on U85 SRAM and EXT, which have the same numbers. */
static al_ethosu_pmu pmu = {.events = {0x30, 0x82, 0x87, 0x182}, .event_count = AL_NPU_EVENTS};
static al_ethosu_driver driver = {.base = AL_NPU_BASE, .pmu = &pmu};
static al_ethosu_cosim cosim;
static al_ethosu ethosu;

al_backend al_npu_backends[1];

#ifdef AL_NPU_INTERRUPT
#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define SYST_CSR REGISTER(0xe000e010)
#define SYST_RVR REGISTER(0xe000e014)
#define NVIC_ISER ((volatile uint32_t *)0xe000e100)

/* WFE alone would sleep for ever if no interrupt comes. SysTick ends it every 2^24 cycles of the core: 5 seconds in all
 * at 860 MHz, 3 minutes at 25 MHz. */
enum { SYST_LAST = 0xffffff, SYST_ON = 7, SILENT_TICKS = 256 };
static volatile uint32_t ticks; /* since the NPU's last interrupt */

void al_npu_interrupt(void); /* these two are in the vector table */
void al_npu_interrupt(void) {
  ticks = 0;
  al_ethosu_interrupt(&driver);
}

void al_tick(void);
void al_tick(void) { ticks++; }

static bool sleep(void *unused) {
  SYST_CSR = SYST_ON;
  al_ethosu_wfe(unused);
  SYST_CSR = 0;
  if (ticks < SILENT_TICKS) return true;
  ticks = 0;
  return false;
}

static void enable_interrupt(void) {
  SYST_RVR = SYST_LAST;
  driver.sleep = sleep;
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

void al_npu_counts(al_profile *profile) {
  profile->npu_cycles += pmu.cycles;
  pmu.cycles = 0;
  for (uint32_t i = 0; i < AL_NPU_EVENTS; i++) {
    profile->npu_events[i] += pmu.counters[i];
    pmu.counters[i] = 0;
  }
}
