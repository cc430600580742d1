/* Runs the job of the file "job", twice if AGAIN, and writes what came of it to the file "result".
 *
 * job: words command bytes, weight bytes, scratch bytes, fast scratch bytes, flags, poll limit, number of events, 8
 * events; then the four memories. result: see below; then the text and the scratch memory. */
#include <string.h>

#include "cosim.h"
#include "port.h"
#include "semihosting.h"

enum { INTERRUPT = 1, NON_SECURE = 2, USER = 4, COUNT = 8, HOOKS = 16, REMAP = 32, NO_NPU = 64, COSIM = 128, AGAIN = 256 };
#define CCR (*(volatile uint32_t *)0xe000ed14)
#define CTR (*(volatile uint32_t *)0xe000ed7c)

static _Alignas(16) uint8_t commands[1 << 17] __attribute__((section(".ddr")));
static _Alignas(16) uint8_t weights[1 << 22] __attribute__((section(".ddr")));
static _Alignas(16) uint8_t scratch[1 << 20] __attribute__((section(".sram")));
static _Alignas(16) uint8_t fast[1 << 19] __attribute__((section(".sram")));

static struct {
  uint32_t bytes[4], flags, limit, event_count, events[AL_ETHOSU_EVENTS];
} job;
static struct {
  uint32_t status, text_bytes, id, cycles, counters[AL_ETHOSU_EVENTS];
  uint32_t sleeps, cleaned, clean_bytes, invalidated, invalidated_bytes, last_line;
} result;
static al_ethosu_driver driver = {.base = AL_NPU_BASE};
static al_ethosu_cosim cosim = {.request = "requests", .reply = "replies"};
static al_ethosu_pmu pmu;
static char text[160];

/* There is no interrupt controller: the line is looked at, and the handler called by hand. */
static bool sleep(void *state) {
  (void)state;
  result.sleeps++;
  if (*(volatile uint32_t *)(AL_NPU_BASE + 4) & 2) al_ethosu_interrupt(&driver);
  return true;
}

static void clean(const void *address, uint32_t bytes) {
  result.cleaned++;
  result.clean_bytes += bytes;
  al_ethosu_scb_clean(address, bytes);
  result.last_line = *(volatile uint32_t *)0xe000ef70;
}

static void invalidate(void *address, uint32_t bytes) {
  result.invalidated++;
  result.invalidated_bytes += bytes;
  al_ethosu_scb_invalidate(address, bytes);
}

static uint64_t remap(const void *address) { return (uint64_t)(uintptr_t)address | 1ull << 36; }

int main(void) {
  uint8_t *memories[4] = {commands, weights, scratch, fast};
  int in = sh_open("job", SH_READ), out = sh_open("result", SH_WRITE);
  if (in < 0 || out < 0 || sh_read(in, &job, sizeof job)) return 1;
  for (int i = 0; i < 4; i++)
    if (job.bytes[i] && sh_read(in, memories[i], job.bytes[i])) return 2;
  driver.limit = job.limit;
  driver.non_secure = job.flags & NON_SECURE;
  driver.user = job.flags & USER;
  if (job.flags & INTERRUPT) driver.sleep = sleep;
  if (job.flags & HOOKS) {
    CCR |= 1 << 16;
    CTR = 3 << 16; /* lines of 32 bytes */
    driver.clean = clean;
    driver.invalidate = invalidate;
  }
  if (job.flags & REMAP) driver.bus_address = remap;
  if (job.flags & NO_NPU) driver.base = 0;
  if (job.flags & COUNT) {
    driver.pmu = &pmu;
    pmu.event_count = job.event_count;
    for (int i = 0; i < AL_ETHOSU_EVENTS; i++) pmu.events[i] = (uint16_t)job.events[i];
  }
  al_npu npu = al_ethosu_choose(&driver, job.flags & COSIM ? &cosim : NULL);
  al_ethosu_job work = {commands, job.bytes[0], weights, job.bytes[1], scratch, job.bytes[2], fast, job.bytes[3]};
  if (job.flags & AGAIN) npu.run(npu.state, &work, text, sizeof text);
  text[0] = 0;
  result.status = npu.run(npu.state, &work, text, sizeof text);
  result.text_bytes = strlen(text);
  result.id = al_ethosu_probe(&driver);
  result.cycles = (uint32_t)pmu.cycles;
  memcpy(result.counters, pmu.counters, sizeof pmu.counters);
  if (sh_write(out, &result, sizeof result)) return 3;
  if (result.text_bytes && sh_write(out, text, result.text_bytes)) return 4;
  return job.bytes[2] && sh_write(out, scratch, job.bytes[2]) ? 5 : 0;
}
