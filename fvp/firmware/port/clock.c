/* Two clocks for profiling.
 *
 * Under `qemu -icount shift=5` the virtual time moves 32 ns for each instruction, and the system counter of SSE-300
 * (32 MHz, 64 bits) shows it: instruction n is at tick floor(1.024 n), from which n follows exactly.
 * So it does for any counter that is at least as fast as 31.25 MHz.
 */
#include "port.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define DEMCR REGISTER(0xe000edfc)
#define DWT_CTRL REGISTER(0xe0001000)
#define DWT_CYCCNT REGISTER(0xe0001004)

void al_clock_init(void) {
#ifdef AL_COUNTER_BASE
  REGISTER(AL_COUNTER_BASE) = 1; /* CNTCR: enable */
#endif
  DEMCR |= 1u << 24; /* TRCENA */
  DWT_CYCCNT = 0;
  DWT_CTRL |= 1;
}

uint64_t al_instructions(void) {
#ifdef AL_COUNTER_BASE
  uint32_t high, low;
  do {
    high = REGISTER(AL_COUNTER_BASE + 0x0c);
    low = REGISTER(AL_COUNTER_BASE + 0x08);
  } while (high != REGISTER(AL_COUNTER_BASE + 0x0c));
  /* ticks * (10^9 / 32) / clock, rounded up */
  return ((uint64_t)high << 32 | low) * 31250 / (AL_COUNTER_CLOCK / 1000) + 1;
#else
  return 0;
#endif
}

/* The counter has 32 bits: it must be read at least once in 2^32 cycles. */
uint64_t al_cycles(void) {
  static uint64_t total;
  total += (uint32_t)(DWT_CYCCNT - (uint32_t)total);
  return total;
}
