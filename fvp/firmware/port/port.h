/* Start-up, console, clocks and stack of a board. */
#ifndef AL_PORT_H
#define AL_PORT_H

#include <stdbool.h>
#include <stdint.h>

#define AL_EXIT_FAULT 99
#define AL_EXIT_USAGE 98

int main(void);

void al_console_init(void);
void al_put(char c);
void al_puts(const char *text);
void al_put_text(const char *text, uint32_t size); /* not terminated */
void al_put_unsigned(uint64_t number);
void al_put_int(int32_t number);
void al_put_hex(uint32_t number);

/* Counters that only move forward. Instructions: exact under `qemu -icount shift=5` on a board with a counter, without
 * meaning elsewhere. Cycles: of the core, as its performance monitor counts; 0 in QEMU. */
void al_clock_init(void);
uint64_t al_instructions(void);
uint64_t al_cycles(void);

uint32_t al_stack_size(void);
uint32_t al_stack_used(void); /* most bytes so far */

#endif
