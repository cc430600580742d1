/* Register facts: Arm Ethos-U55, U65 and U85 technical reference manuals; public interface headers. */
#include "driver.h"

enum { ID = 0x00, STATUS = 0x04, CMD = 0x08, RESET = 0x0c, QBASE = 0x10, QREAD = 0x18, QCONFIG = 0x1c, QSIZE = 0x20 };
enum { PROT = 0x24, CONFIG = 0x28, REGIONCFG = 0x3c, AXI = 0x40, BASEP = 0x80 };
/* Performance counters; U85 has them 4 KiB further. */
enum { PMCR = 0x180, PMCNTENSET = 0x184, PMCNTENCLR = 0x188, PMCCNTR = 0x1a0, PMEVCNTR = 0x300, PMEVTYPER = 0x380 };
enum { U85_PMU = 0x1000, PMCR_ENABLE = 1, PMCR_RESET_EVENTS = 2, PMCR_RESET_CYCLES = 4 };
#define PMU_CYCLES 0x80000000u

enum { RUNNING = 1 << 0, IRQ = 1 << 1, BUS = 1 << 2, RESETTING = 1 << 3, PARSE = 1 << 4, END = 1 << 5 };
enum { WEIGHTS = 1 << 7, ECC = 1 << 8, BRANCH = 1 << 9, FAULTS = BUS | PARSE | WEIGHTS | ECC | BRANCH };
enum { CMD_RUN = 1 << 0, CMD_CLEAR_IRQ = 1 << 1, CMD_CLOCK_OFF = 1 << 2, CMD_POWER_OFF = 1 << 3 };
enum { PROT_PRIVILEGED = 1 << 0, PROT_NON_SECURE = 1 << 1 };

enum { U55, U65, U85, PRODUCTS };
enum { RESET_LIMIT = 100000, LIMIT = 50000000 };

/* Port settings 0 and 1 belong to the first port (fast memory), 2 and 3 to the second. As many transfers in flight as
 * the product can have, bursts of 64 bytes (U85: 256). */
static const al_ethosu_axi defaults[PRODUCTS] = {
    [U55] = {2, 0x5553, {0x0f1f0000, 0x0f1f0000, 0x0f1f0000, 0x0f1f0000}},
    [U65] = {2, 0x555b, {0x1f3f0000, 0x1f3f0000, 0x1f3f0000, 0x1f3f0000}},
    [U85] = {2, 0x5553, {0, 0, 4, 4, 0x00020f0b, 0x00021f3f}},
};

static const struct {
  uint32_t bit;
  al_status status;
} faults[] = {{BUS, AL_NPU_BUS}, {PARSE, AL_NPU_PARSE}, {WEIGHTS, AL_NPU_WEIGHTS}, {ECC, AL_NPU_ECC},
              {BRANCH, AL_NPU_BRANCH}};

static uint32_t get(const al_ethosu_driver *driver, uint32_t offset) {
  return *(volatile const uint32_t *)(driver->base + offset);
}

static void put(al_ethosu_driver *driver, uint32_t offset, uint32_t value) {
  *(volatile uint32_t *)(driver->base + offset) = value;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

typedef struct text {
  char *next;
  const char *last; /* room for the final zero */
} text;

static void add(text *t, const char *words) {
  while (*words && t->next < t->last) *t->next++ = *words++;
  *t->next = 0;
}

static void add_number(text *t, uint32_t value, uint32_t base) {
  char digits[12];
  uint32_t at = sizeof digits;
  digits[--at] = 0;
  do {
    digits[--at] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value);
  add(t, base == 16 ? "0x" : "");
  add(t, digits + at);
}

static void add_npu(text *t, uint32_t config) {
  static const char names[][4] = {"U55", "U65", "U85"};
  uint32_t product = config >> 28;
  add(t, "Ethos-");
  add(t, product < PRODUCTS ? names[product] : "?");
  add(t, " with ");
  add_number(t, 1u << (config & 15), 10);
  add(t, " MACs");
}

static void add_mismatch(text *t, const char *what, uint32_t made_for, uint32_t found) {
  add(t, what);
  add_number(t, made_for, 16);
  add(t, ", the NPU has ");
  add_number(t, found, 16);
}

/* ---- steps of a call ----------------------------------------------------------------------------------------- */

static al_status check_npu(const al_ethosu_driver *driver, const al_ethosu_payload *payload, text *t) {
  uint32_t config = get(driver, CONFIG), id = get(driver, ID);
  uint32_t other = config ^ payload->config;
  if (other >> 28 || (other & 15)) {
    add(t, "made for ");
    add_npu(t, payload->config);
    add(t, ", found ");
    add_npu(t, config);
    return other >> 28 ? AL_NPU_PRODUCT : AL_NPU_MACS;
  }
  if (config >> 28 >= PRODUCTS) return AL_NPU_PRODUCT;
  /* [7:4] version of the command stream; U85: [9:8] and [10] number of memory ports */
  if (other & (config >> 28 == U85 ? 0x7f0u : 0xf0u)) {
    add_mismatch(t, "made for configuration ", payload->config, config);
    return AL_NPU_PRODUCT;
  }
  if (id >> 28 != payload->id >> 28 || (id >> 20 & 0xff) < (payload->id >> 20 & 0xff)) {
    add_mismatch(t, "made for architecture ", payload->id, id);
    return AL_NPU_PRODUCT;
  }
  return AL_OK;
}

/* Also ends whatever the NPU does, and sets how it accesses memory. */
static al_status reset(al_ethosu_driver *driver, text *t) {
  uint32_t access = (driver->user ? 0u : PROT_PRIVILEGED) | (driver->non_secure ? PROT_NON_SECURE : 0u);
  put(driver, RESET, access);
  for (uint32_t i = 0; i < RESET_LIMIT; i++) {
    driver->status = get(driver, STATUS);
    if (driver->status & RESETTING) continue;
    uint32_t found = get(driver, PROT);
    if ((found & 3) == access) return AL_OK;
    add_mismatch(t, "asked for access level ", access, found);
    return AL_NPU_ACCESS;
  }
  return AL_NPU_RESET;
}

static void put_address(al_ethosu_driver *driver, uint32_t product, uint32_t offset, const void *address) {
  uint64_t bus = driver->bus_address ? driver->bus_address(address) : (uintptr_t)address;
  put(driver, offset, (uint32_t)bus);
  if (product != U55) put(driver, offset + 4, (uint32_t)(bus >> 32));
}

static void configure(al_ethosu_driver *driver, uint32_t product, const al_ethosu_payload *payload,
                      const al_ethosu_job *job) {
  const al_ethosu_axi *axi = driver->axi ? driver->axi : &defaults[product];
  for (uint32_t i = 0; i < (product == U85 ? 6u : 4u); i++) put(driver, AXI + 4 * i, axi->limits[i]);
  put_address(driver, product, QBASE, payload->stream);
  put(driver, QSIZE, payload->stream_bytes);
  put(driver, QCONFIG, axi->queue);
  put_address(driver, product, BASEP, job->weights);
  put_address(driver, product, BASEP + 8, job->scratch);
  put_address(driver, product, BASEP + 16, job->fast_scratch);
  put(driver, REGIONCFG, axi->regions);
}

static uint32_t pmu_base(uint32_t product) { return product == U85 ? U85_PMU : 0; }

static uint32_t event_count(const al_ethosu_driver *driver, uint32_t pmu) {
  uint32_t has = get(driver, pmu + PMCR) >> 11 & 31, count = driver->pmu->event_count;
  if (count > has) count = has;
  return count > AL_ETHOSU_EVENTS ? AL_ETHOSU_EVENTS : count;
}

static void start_counting(al_ethosu_driver *driver, uint32_t pmu) {
  uint32_t count = event_count(driver, pmu);
  put(driver, pmu + PMCR, PMCR_ENABLE | PMCR_RESET_EVENTS | PMCR_RESET_CYCLES);
  for (uint32_t i = 0; i < count; i++) put(driver, pmu + PMEVTYPER + 4 * i, driver->pmu->events[i]);
  put(driver, pmu + PMCNTENSET, PMU_CYCLES | ((1u << count) - 1));
}

static void stop_counting(al_ethosu_driver *driver, uint32_t pmu) {
  al_ethosu_pmu *result = driver->pmu;
  uint32_t count = event_count(driver, pmu);
  put(driver, pmu + PMCNTENCLR, PMU_CYCLES | ((1u << count) - 1));
  result->cycles = (uint64_t)get(driver, pmu + PMCCNTR + 4) << 32 | get(driver, pmu + PMCCNTR);
  for (uint32_t i = 0; i < AL_ETHOSU_EVENTS; i++)
    result->counters[i] = i < count ? get(driver, pmu + PMEVCNTR + 4 * i) : 0;
}

/* A command may raise the interrupt in the middle (OP_IRQ). */
static bool is_over(uint32_t status) {
  return status & FAULTS || (status & IRQ && (status & END || !(status & RUNNING)));
}

static bool wait(al_ethosu_driver *driver) {
  uint32_t limit = driver->limit ? driver->limit : LIMIT;
  for (uint32_t i = 0; i < limit; i++) {
    if (driver->interrupted) return true;
    if (!driver->sleep) {
      driver->status = get(driver, STATUS);
      if (is_over(driver->status)) return true;
    } else if (!driver->sleep(driver->hook_state)) {
      break;
    }
  }
  driver->status = get(driver, STATUS);
  return false;
}

static al_status outcome(const al_ethosu_driver *driver, bool in_time) {
  uint32_t status = driver->status;
  for (uint32_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
    if (status & faults[i].bit) return faults[i].status;
  bool unheard = driver->sleep && !in_time && status & IRQ; /* raised, but not for this CPU: a wrong number? */
  if (status & END && !unheard) return AL_OK;
  if (status & RUNNING && !in_time) return AL_NPU_TIMEOUT;
  return status & IRQ && !unheard ? AL_NPU_STOPPED : AL_NPU_SILENT;
}

static void clean(const al_ethosu_driver *driver, const void *address, uint32_t bytes) {
  if (driver->clean && bytes) driver->clean(address, bytes);
}

static al_status execute(al_ethosu_driver *driver, const al_ethosu_payload *payload, const al_ethosu_job *job,
                         text *t) {
  uint32_t product = payload->config >> 28, pmu = pmu_base(product);
  clean(driver, job->commands, job->command_bytes);
  clean(driver, job->weights, job->weight_bytes);
  clean(driver, job->scratch, job->scratch_bytes);
  clean(driver, job->fast_scratch, job->fast_scratch_bytes);
  configure(driver, product, payload, job);
  if (driver->pmu) start_counting(driver, pmu);
  driver->interrupted = false;
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* all data before the start */
  put(driver, CMD, CMD_RUN);
  bool in_time = wait(driver);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (driver->pmu) stop_counting(driver, pmu);
  al_status status = outcome(driver, in_time);
  if (status) {
    add(t, "status ");
    add_number(t, driver->status, 16);
    add(t, ", command at byte ");
    add_number(t, get(driver, QREAD), 10);
    add(t, " of ");
    add_number(t, payload->stream_bytes, 10);
    reset(driver, &(text){t->next, t->next}); /* it must not write to memory any more */
  }
  put(driver, CMD, CMD_CLEAR_IRQ | CMD_CLOCK_OFF | CMD_POWER_OFF);
  if (driver->invalidate) {
    driver->invalidate(job->scratch, job->scratch_bytes);
    if (job->fast_scratch_bytes) driver->invalidate(job->fast_scratch, job->fast_scratch_bytes);
  }
  return status;
}

static al_status run(void *state, const al_ethosu_job *job, char *buffer, size_t size) {
  al_ethosu_driver *driver = state;
  al_ethosu_payload payload;
  text t = {buffer, buffer + size - 1};
  if (!al_ethosu_probe(driver)) return AL_NPU_MISSING;
  al_status status = al_ethosu_parse(job->commands, job->command_bytes, &payload);
  if (!status) status = check_npu(driver, &payload, &t);
  if (!status) status = reset(driver, &t);
  return status ? status : execute(driver, &payload, job, &t);
}

/* ---- public -------------------------------------------------------------------------------------------------- */

uint32_t al_ethosu_probe(const al_ethosu_driver *driver) { return driver->base ? get(driver, ID) : 0; }

al_npu al_ethosu_driver_npu(al_ethosu_driver *driver) { return (al_npu){run, driver}; }

void al_ethosu_interrupt(al_ethosu_driver *driver) {
  uint32_t status = get(driver, STATUS);
  if (!(status & IRQ)) return; /* called again, before the line fell */
  put(driver, CMD, CMD_CLEAR_IRQ); /* [3:2] 0: clock and power stay on */
  /* After an interrupt in the middle the NPU may have finished before the write, which cleared that interrupt too. */
  if (!is_over(status)) status = get(driver, STATUS) | IRQ;
  if (is_over(status)) {
    driver->status = status;
    driver->interrupted = true;
  }
#ifdef __arm__
  __asm volatile("dsb\n sev" ::: "memory");
#endif
}

#ifdef __arm__
bool al_ethosu_wfe(void *hook_state) {
  (void)hook_state;
  __asm volatile("wfe" ::: "memory");
  return true;
}

enum { SCB_CCR = 0x14, SCB_CTR = 0x7c, SCB_DCIMVAC = 0x25c, SCB_DCCIMVAC = 0x270, CCR_DATA_CACHE = 1 << 16 };

static volatile uint32_t *scb(uint32_t offset) { return (volatile uint32_t *)(0xe000ed00u + offset); }

static void by_line(uint32_t operation, uintptr_t address, uint32_t bytes) {
  if (!(*scb(SCB_CCR) & CCR_DATA_CACHE)) return;
  uint32_t line = 4u << (*scb(SCB_CTR) >> 16 & 15);
  __asm volatile("dsb" ::: "memory");
  for (uintptr_t at = address & ~(uintptr_t)(line - 1); at < address + bytes; at += line) *scb(operation) = at;
  __asm volatile("dsb\n isb" ::: "memory");
}

void al_ethosu_scb_clean(const void *address, uint32_t bytes) { by_line(SCB_DCCIMVAC, (uintptr_t)address, bytes); }

void al_ethosu_scb_invalidate(void *address, uint32_t bytes) { by_line(SCB_DCIMVAC, (uintptr_t)address, bytes); }
#endif
