/* The MPU lets nobody reach the registers, so each load and store there is a HardFault; its handler looks up what the
 * instruction wants, and goes on behind it. Two timers of the SSE-300 are interrupts of their own: one moves the NPU
 * on at the time that its steps say, which is what makes it asynchronous, the other is the watchdog. */
#include "fake_npu.h"

#include <stddef.h>

#include "port.h"
#include "semihosting.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define NVIC(offset, irq) REGISTER(0xe000e000u + (offset) + 4 * ((irq) / 32))
#define BIT(irq) (1u << (irq) % 32)
enum { ISER = 0x100, ISPR = 0x200, ICPR = 0x280 };
#define VTOR REGISTER(0xe000ed08)
#define CFSR REGISTER(0xe000ed28)
#define HFSR REGISTER(0xe000ed2c)
#define MMFAR REGISTER(0xe000ed34)
#define MPU_CTRL REGISTER(0xe000ed94)
#define MPU_RNR REGISTER(0xe000ed98)
#define MPU_RBAR REGISTER(0xe000ed9c)
#define MPU_RLAR REGISTER(0xe000eda0)
#define MMARVALID (1u << 7)

enum { NPU_TIMER = 0, WATCHDOG = 1, FIRST_IRQ = 3 }; /* SSE-300: timer n has interrupt 3 + n */
#define TIMER(n, offset) REGISTER(0x58000000u + 0x1000u * (n) + (offset))
enum { NOW = 0x00, COMPARE = 0x20, CONTROL = 0x2c };
#define GRID 4 /* ticks: 125 ns. QEMU loses itself with times of a part of a nanosecond. */

enum { BYTES = 0x2000, REG_ID = 0x00, STATUS = 0x04, CMD = 0x08, RESET = 0x0c, PROT = 0x24, CONFIG = 0x28 };
enum { CMD_RUN = 1, CMD_CLEAR_IRQ = 2 };

struct fake_npu fake_npu;
static uint32_t words[BYTES / 4], next;
static uint64_t begin; /* of the next step */
static bool in_handler, holds; /* the NPU's exception is active; the line is up although IRQ is not set */
static void (*on_bark)(void);

/* ---- timers ------------------------------------------------------------------------------------------------------ */

static uint64_t now(void) {
  uint32_t high, low;
  do {
    high = TIMER(NPU_TIMER, NOW + 4);
    low = TIMER(NPU_TIMER, NOW);
  } while (high != TIMER(NPU_TIMER, NOW + 4));
  return (uint64_t)high << 32 | low;
}

static void set_timer(uint32_t timer, uint64_t time) {
  time = (time + GRID - 1) / GRID * GRID;
  TIMER(timer, COMPARE) = (uint32_t)time;
  TIMER(timer, COMPARE + 4) = (uint32_t)(time >> 32);
  TIMER(timer, CONTROL) = 1;
}

static void stop_timer(uint32_t timer) { TIMER(timer, CONTROL) = 0; }

static void on_watchdog(void) {
  stop_timer(WATCHDOG);
  on_bark();
}

/* ---- what the NPU does ------------------------------------------------------------------------------------------- */

/* The NVIC looks at a line when it rises, and again when the handler ends. What falls before is forgotten, as it is by
 * a level. */
static void update_line(void) {
  bool high = fake_npu.status & IRQ || holds;
  NVIC(high ? ISPR : ICPR, AL_NPU_IRQ) = BIT(AL_NPU_IRQ);
}

/* All steps whose time has come. */
static void advance(void) {
  stop_timer(NPU_TIMER);
  if (!(fake_npu.status & RUNNING)) return;
  for (uint64_t time = now(); next < fake_npu.count && fake_npu.steps[next].after <= time - begin; next++) {
    begin += fake_npu.steps[next].after;
    fake_npu.status = fake_npu.steps[next].status;
    update_line();
  }
  if (next < fake_npu.count) set_timer(NPU_TIMER, begin + fake_npu.steps[next].after);
}

static void command(uint32_t value) {
  if (value & CMD_CLEAR_IRQ) {
    fake_npu.status &= ~(uint32_t)IRQ;
    fake_npu.interrupts += in_handler;
    if (in_handler && fake_npu.lags) holds = true, fake_npu.lags = false;
    update_line();
  }
  if (value & CMD_RUN) {
    if (fake_npu.status & ~(uint32_t)END) fake_npu.misuse = "start of an NPU that runs, or without a reset";
    fake_npu.status = RUNNING;
    fake_npu.runs++;
    next = 0;
    begin = now();
    advance();
  }
}

static void reset(uint32_t access) {
  fake_npu.status = 0;
  words[PROT / 4] = access & 3;
  advance();
  update_line();
}

static void write(uint32_t offset, uint32_t value) {
  advance();
  if (offset == CMD) {
    command(value);
  } else if (offset == RESET) {
    reset(value);
  } else {
    if (fake_npu.status & RUNNING && offset % 0x1000 < 0x180) fake_npu.misuse = "write while the NPU runs";
    words[offset / 4] = value;
  }
}

static uint32_t read(uint32_t offset) {
  advance();
  if (in_handler && !(NVIC(ISPR, AL_NPU_IRQ) & BIT(AL_NPU_IRQ))) holds = false; /* it was taken once more */
  if (in_handler) update_line();
  return offset == STATUS ? fake_npu.status : words[offset / 4];
}

/* ---- how an access becomes one of the two ------------------------------------------------------------------------ */

typedef struct frame {
  uint32_t r0_r3[4], r12, lr, pc, xpsr;
} frame;

void al_fault(void);
void fake_npu_fault(frame *f, uint32_t *r4_r11) __attribute__((used));

static void __attribute__((noreturn)) stop(const char *why, uint32_t number) {
  al_puts(why);
  al_put_hex(number);
  al_puts("\n");
  sh_exit(4);
}

static uint32_t *register_of(frame *f, uint32_t *r4_r11, uint32_t number) {
  if (number < 4) return &f->r0_r3[number];
  if (number < 12) return &r4_r11[number - 4];
  if (number > 12) stop("no fault was expected with register ", number);
  return &f->r12;
}

/* Behind the instruction, in its IT block, too. */
static void step_over(frame *f, uint32_t bytes) {
  uint32_t it = (f->xpsr >> 25 & 3) | (f->xpsr >> 8 & 0xfc);
  it = it & 7 ? (it & 0xe0) | (it << 1 & 0x1f) : 0;
  f->xpsr = (f->xpsr & ~0x0600fc00u) | (it & 3) << 25 | (it & 0xfc) << 8;
  f->pc += bytes;
}

void fake_npu_fault(frame *f, uint32_t *r4_r11) {
  uint32_t address = MMFAR, offset = address - AL_NPU_BASE;
  if (!(CFSR & MMARVALID) || offset >= BYTES || offset % 4) stop("fault elsewhere, at ", f->pc);
  CFSR = CFSR; /* clears what is written as 1 */
  HFSR = HFSR;
  const uint16_t *code = (const uint16_t *)f->pc;
  uint32_t op = code[0], number, bytes = 2;
  bool load;
  if (op >> 12 == 6 || (op & 0xf600) == 0x5000) { /* LDR, STR: offset of 5 bits, or a register */
    load = op & 0x800;
    number = op & 7;
  } else if ((op & 0xff60) == 0xf840) { /* of 12 bits; of 8 bits, or a register */
    if (!(op & 0x80) && (code[1] & 0xd00) != 0xc00 && code[1] & 0xfc0) stop("address that moves, at ", f->pc);
    load = op & 0x10;
    number = code[1] >> 12;
    bytes = 4;
  } else {
    stop("unknown instruction at ", f->pc);
  }
  in_handler = (f->xpsr & 0x1ff) == 16 + AL_NPU_IRQ;
  uint32_t *value = register_of(f, r4_r11, number);
  if (load) *value = read(offset);
  else write(offset, *value);
  in_handler = false;
  step_over(f, bytes);
}

static void __attribute__((naked)) on_fault(void) {
  __asm__ volatile(
      "mrs r0, msp\n"
      "push {r3-r11, lr}\n" /* r3: an even number of words */
      "add r1, sp, #4\n"
      "bl fake_npu_fault\n"
      "pop {r3-r11, pc}\n");
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

void fake_npu_watch(uint32_t ms, void (*bark)(void)) {
  on_bark = bark;
  stop_timer(WATCHDOG);
  if (ms) set_timer(WATCHDOG, now() + (uint64_t)ms * MILLISECOND);
}

bool fake_npu_pending(void) { return NVIC(ISPR, AL_NPU_IRQ) & BIT(AL_NPU_IRQ); }

void fake_npu_update(void) { update_line(); }

/* Read and write for all, and code. */
static void add_region(uint32_t number, uint32_t first, uint32_t end) {
  MPU_RNR = number;
  MPU_RBAR = first | 1 << 1;
  MPU_RLAR = (end - 32) | 1;
}

void fake_npu_install(void) {
  words[REG_ID / 4] = NPU_ID;
  words[CONFIG / 4] = NPU_CONFIG;
  /* startup.c's own table; code is in RAM */
  void (**table)(void) = (void (**)(void))(uintptr_t)VTOR;
  table[3] = on_fault;
  table[16 + FIRST_IRQ + NPU_TIMER] = advance;
  table[16 + FIRST_IRQ + WATCHDOG] = on_watchdog;
  add_region(0, 0, AL_NPU_BASE);
  add_region(1, AL_NPU_BASE + BYTES, 0xe0000000);
  MPU_CTRL = 1; /* on, and nothing outside of the regions; off in the HardFault */
  NVIC(ISER, FIRST_IRQ) = BIT(FIRST_IRQ + NPU_TIMER) | BIT(FIRST_IRQ + WATCHDOG);
  __asm__ volatile("dsb\n isb" ::: "memory");
}
