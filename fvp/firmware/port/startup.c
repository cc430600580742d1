/* From reset to main, and what is left to do after a fault. */
#include "port.h"

#include <string.h>

#include "semihosting.h"

extern uint32_t al_stack_limit[], al_stack_top[]; /* the linker script's */
extern uint32_t al_data_start[], al_data_end[], al_bss_start[], al_bss_end[];
extern const uint32_t al_data_load[];

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CFSR REGISTER(0xe000ed28)
#define HFSR REGISTER(0xe000ed2c)
#define MMFAR REGISTER(0xe000ed34)
#define BFAR REGISTER(0xe000ed38)
#define STACK_OVERFLOW (1u << 20) /* of CFSR */
#define PAINT 0xc5c5c5c5u

void al_reset(void) __attribute__((naked, noreturn));
void al_start(void) __attribute__((noreturn, used));
void al_fault(void) __attribute__((naked));
void al_report_fault(const uint32_t *frame, uint32_t exception) __attribute__((noreturn, used));
void al_npu_interrupt(void) __attribute__((weak, alias("al_fault")));
void al_tick(void) __attribute__((weak, alias("al_fault"))); /* of SysTick */

#ifndef AL_NPU_IRQ
#define AL_NPU_IRQ 0
#endif
#define IRQS (AL_NPU_IRQ + 1)

/* The pragma: the two last entries override the range before them, on purpose. */
#pragma GCC diagnostic ignored "-Woverride-init"
__attribute__((section(".vectors"), used)) static void (*const vectors[16 + IRQS])(void) = {
    [0] = (void (*)(void))(uintptr_t)al_stack_top,
    [1] = al_reset,
    [2 ... 15 + IRQS] = al_fault,
    [15] = al_tick,
    [16 + AL_NPU_IRQ] = al_npu_interrupt,
};

/* No floating point or MVE instruction may come before CPACR is written, and the compiler is free to use them in any
 * function: this one is assembler. The stack pointer may be anything if a loader jumped here. */
void al_reset(void) {
  __asm__ volatile(
      "cpsid i\n"
      "ldr r0, =al_stack_limit\n msr msplim, r0\n"
      "ldr r0, =al_stack_top\n mov sp, r0\n"
      "ldr r0, =0xe000ed88\n ldr r1, [r0]\n orr r1, r1, #0xf00000\n str r1, [r0]\n" /* CPACR */
      "ldr r0, =0xe000ed08\n ldr r1, =%c0\n str r1, [r0]\n"                          /* VTOR */
      "dsb\n isb\n"
      "b al_start\n" ::"i"(vectors));
}

void al_start(void) {
  memcpy(al_data_start, al_data_load, (uintptr_t)al_data_end - (uintptr_t)al_data_start);
  memset(al_bss_start, 0, (uintptr_t)al_bss_end - (uintptr_t)al_bss_start);
  uint32_t *here = __builtin_frame_address(0);
  for (uint32_t *p = al_stack_limit; p < here - 16; p++) *(volatile uint32_t *)p = PAINT;
  al_console_init();
  al_clock_init();
  __asm__ volatile("cpsie i" ::: "memory");
  int code = main();
  al_put(4); /* EOT ends an FVP */
  sh_exit(code);
}

uint32_t al_stack_size(void) { return (uint32_t)((uintptr_t)al_stack_top - (uintptr_t)al_stack_limit); }

uint32_t al_stack_used(void) {
  const volatile uint32_t *p = al_stack_limit;
  while (p < al_stack_top && *p == PAINT) p++;
  return (uint32_t)((uintptr_t)al_stack_top - (uintptr_t)p);
}

/* The stack may be what failed: the report has one of its own. Nothing returns from here. */
static uint64_t fault_stack[40] __attribute__((used));

void al_fault(void) {
  __asm__ volatile(
      "mrs r0, msp\n"
      "movs r1, #0\n msr msplim, r1\n"
      "mrs r1, ipsr\n"
      "ldr r2, =%c0\n mov sp, r2\n"
      "b al_report_fault\n" ::"i"(fault_stack + 40));
}

static void put_register(const char *name, uint32_t value) {
  al_puts(name);
  al_put_hex(value);
}

void al_report_fault(const uint32_t *frame, uint32_t exception) {
  uint32_t pc = 0, lr = 0, status = CFSR;
  bool framed = !(status & STACK_OVERFLOW) && frame >= al_stack_limit && frame + 8 <= al_stack_top;
  if (framed) lr = frame[5], pc = frame[6];
  al_puts("\narm-lower: fault");
  put_register(" CFSR=", status);
  put_register(" HFSR=", HFSR);
  put_register(" MMFAR=", MMFAR);
  put_register(" BFAR=", BFAR);
  put_register(" PC=", pc);
  put_register(" LR=", lr);
  al_puts(" exception=");
  al_put_unsigned(exception);
  if (status & STACK_OVERFLOW) al_puts(" stack overflow");
  al_puts("\n");
  al_put(4);
  sh_exit(AL_EXIT_FAULT);
}
