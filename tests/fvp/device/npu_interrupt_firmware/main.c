/* Calls of the NPU by interrupt. Prints a line "check NAME calls=N failures=N interrupts=N sleeps=N" for each group,
 * and how the first failure of it looks. A call that does not return is "hang", and the end. */
#include "cosim.h"
#include "fake_npu.h"
#include "port.h"
#include "semihosting.h"

/* npu.c */
extern al_backend al_npu_backends[];
void al_npu_setup(const char *requests, const char *replies);

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define NVIC_ICER (((volatile uint32_t *)0xe000e180)[AL_NPU_IRQ / 32])
#define NVIC_ISER (((volatile uint32_t *)0xe000e100)[AL_NPU_IRQ / 32])
#define NPU_BIT (1u << AL_NPU_IRQ % 32)
#define SECOND (1000u * MILLISECOND)

static const char *name;
static uint32_t calls, failures, interrupts;

/* ---- sleep.h ----------------------------------------------------------------------------------------------------- */

static volatile uint32_t sleeps;

#ifdef SLEEPS
volatile uint32_t model_event;
void model_wfe(void);

/* With interrupts off, nothing comes between the look at the event register and WFI, which they still wake. */
void model_wfe(void) {
  __asm__ volatile("cpsid i" ::: "memory");
  if (model_event) {
    model_event = 0;
  } else {
    sleeps++;
    __asm__ volatile("dsb\n wfi" ::: "memory");
  }
  __asm__ volatile("cpsie i\n isb" ::: "memory");
}
#endif

static void send_event(void) { __asm__ volatile("sev" ::: "memory"); }

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Nothing but the end. */
static const _Alignas(16) uint32_t commands[] = {0x31504f43, 1, NPU_CONFIG, NPU_ID, 5, 5, 5, 1 << 16 | 2, 0xffff0000};
static _Alignas(16) uint8_t scratch[16];

static void hang(void) {
  al_puts("hang ");
  al_puts(name);
  al_puts(" call ");
  al_put_unsigned(calls);
  al_puts("\n");
  sh_exit(3);
}

static void expect(bool holds, const char *what, uint32_t found, uint32_t wanted) {
  if (holds || failures++) return;
  al_puts("first failure in call ");
  al_put_unsigned(calls);
  al_puts(": ");
  al_puts(what);
  al_puts(" ");
  al_put_unsigned(found);
  al_puts(", not ");
  al_put_unsigned(wanted);
  al_puts("\n");
}

typedef struct wanted {
  al_status status;
  uint32_t least, most; /* interrupts taken */
  uint32_t seconds;     /* within this time, or 20 ms */
} wanted;

/* A call in which the NPU goes these steps. */
static void call(const fake_step *steps, uint32_t count, wanted w) {
  const al_ethosu *ethosu = al_npu_backends[0].state;
  const al_ethosu_job job = {.commands = commands, .command_bytes = sizeof commands, .scratch = scratch,
                             .scratch_bytes = sizeof scratch};
  char text[160];
  uint32_t before = fake_npu.interrupts, runs = fake_npu.runs;
  calls++;
  fake_npu.steps = steps;
  fake_npu.count = count;
  fake_npu_watch(w.seconds ? 1000 * w.seconds : 20, hang);
  al_status status = ethosu->npu.run(ethosu->npu.state, &job, text, sizeof text);
  fake_npu_watch(0, hang);
  uint32_t taken = fake_npu.interrupts - before;
  expect(status == w.status, "status", status, w.status);
  expect(taken >= w.least && taken <= w.most, "interrupts", taken, w.most);
  expect(fake_npu.runs == runs + 1, "starts", fake_npu.runs - runs, 1);
  expect(!(fake_npu.status & (RUNNING | IRQ)), "status register", fake_npu.status, 0);
  expect(!fake_npu_pending(), "pending interrupts", 1, 0);
  expect(!fake_npu.misuse, fake_npu.misuse, 1, 0);
  interrupts += taken;
}

static void call_normally(uint32_t at) { call((fake_step[]){{at, END | IRQ}}, 1, (wanted){AL_OK, 1, 1, 0}); }

static void put_field(const char *field, uint32_t value) {
  al_puts(field);
  al_put_unsigned(value);
}

static void report(void) {
  al_puts("check ");
  al_puts(name);
  put_field(" calls=", calls);
  put_field(" failures=", failures);
  put_field(" interrupts=", interrupts);
  put_field(" sleeps=", sleeps);
  al_puts("\n");
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Long enough for the core to sleep in each. */
static void check_end(void) {
  for (uint32_t i = 0; i < 40; i++) call_normally(3000 + 101 * i);
}

/* The end comes at each instruction of the wait: also between the look at the flag and WFE, and where an event of
 * before lets WFE return at once. */
static void check_race(void) {
  for (uint32_t i = 0; i < 1200; i++) {
    if (i & 1) send_event();
    call_normally(i / 2);
  }
}

/* An interrupt in the middle, then the end: long after, and at each instruction of the handler and the wait, where the
 * handler may have cleared both. */
static void check_middle(void) {
  enum { MIDDLE = 2400 };
  for (uint32_t i = 0; i < 20; i++) {
    fake_step steps[] = {{2000, RUNNING | IRQ}, {2000, RUNNING | IRQ}, {2000 + 101 * i, END | IRQ}};
    call(steps, COUNT(steps), (wanted){AL_OK, 3, 3, 0});
  }
  uint32_t before = interrupts;
  for (uint32_t i = 0; i < MIDDLE; i++) {
    fake_step steps[] = {{3000, RUNNING | IRQ}, {i / 2, i & 1 ? IRQ : END | IRQ}};
    call(steps, COUNT(steps), (wanted){i & 1 ? AL_NPU_STOPPED : AL_OK, 1, 2, 0});
  }
  uint32_t taken = interrupts - before;
  expect(taken > MIDDLE && taken < 2 * MIDDLE, "interrupts with and without another one", taken, MIDDLE);
}

/* The line falls so late that the handler runs a second time. */
static void check_late(void) {
  for (uint32_t i = 0; i < 100; i++) {
    fake_npu.lags = true;
    call_normally(20 * i);
    expect(!fake_npu.lags, "lags", 1, 0);
  }
  for (uint32_t i = 0; i < 20; i++) {
    fake_step steps[] = {{1000, RUNNING | IRQ}, {3000, END | IRQ}};
    fake_npu.lags = true;
    call(steps, COUNT(steps), (wanted){AL_OK, 2, 2, 0});
  }
}

/* Each in its own code, at once; then the next call is as good as any. */
static void check_fault(void) {
  static const struct {
    uint32_t bits;
    al_status status;
  } faults[] = {{BUS, AL_NPU_BUS}, {PARSE, AL_NPU_PARSE}, {WEIGHTS, AL_NPU_WEIGHTS}, {ECC, AL_NPU_ECC},
                {BRANCH, AL_NPU_BRANCH}, {0, AL_NPU_STOPPED}};
  for (uint32_t i = 0; i < 10 * COUNT(faults); i++) {
    uint32_t k = i % COUNT(faults);
    call((fake_step[]){{67 * i, faults[k].bits | IRQ}}, 1, (wanted){faults[k].status, 1, 1, 0});
    if (i & 1) call_normally(50 * i);
  }
}

/* The line is up before anybody wants something of the NPU. */
static void check_before(void) {
  for (uint32_t i = 0; i < 2; i++) {
    NVIC_ICER = NPU_BIT;
    fake_npu.status = END | IRQ;
    fake_npu_update();
    expect(fake_npu_pending(), "pending interrupts", 0, 1);
    al_npu_setup(0, 0);
    expect(!(fake_npu.status & IRQ), "status register", fake_npu.status, END);
    call_normally(3000 * i);
  }
}

/* No interrupt comes, or none that the core takes: the wait ends all the same, by SysTick alone. */
static void check_silent(void) {
  for (uint32_t i = 0; i < 2; i++) {
    call((fake_step[]){{5000 * i, 0}}, 1, (wanted){AL_NPU_SILENT, 0, 0, 400});
    call(0, 0, (wanted){AL_NPU_TIMEOUT, 0, 0, 400});
    NVIC_ICER = NPU_BIT;
    call((fake_step[]){{5000 * i, END | IRQ}}, 1, (wanted){AL_NPU_SILENT, 0, 0, 400});
    NVIC_ISER = NPU_BIT;
    send_event();
    call_normally(5000);
  }
}

/* Longer than a silent NPU may take, but never silent for so long. */
static void check_long(void) {
  fake_step steps[] = {{60 * SECOND, RUNNING | IRQ}, {60 * SECOND, RUNNING | IRQ}, {60 * SECOND, END | IRQ}};
  for (uint32_t i = 0; i < 2; i++) call(steps, COUNT(steps), (wanted){AL_OK, 3, 3, 200});
}

/* GROUPS: which of them, on the compiler's command line. */
#define GROUP(group) name = #group, calls = failures = interrupts = sleeps = 0, check_##group(), report();

int main(void) {
  fake_npu_install();
  al_npu_setup(0, 0);
  GROUPS
  al_puts("done\n");
  return 0;
}
