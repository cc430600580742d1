/* Text without printf: the UART of the board, or the host's console. */
#include "port.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

#if defined(AL_UART_CMSDK)
#define DATA REGISTER(AL_UART_BASE)
#define STATE REGISTER(AL_UART_BASE + 0x04)
#define CTRL REGISTER(AL_UART_BASE + 0x08)
#define BAUDDIV REGISTER(AL_UART_BASE + 0x10)
#define BAUD 115200

void al_console_init(void) {
  BAUDDIV = AL_UART_CLOCK / BAUD;
  CTRL = 1; /* transmit */
}

void al_put(char c) {
  while (STATE & 1) continue; /* full */
  DATA = (uint8_t)c;
}

#elif defined(AL_UART_PL011)
void al_console_init(void) {
  REGISTER(AL_UART_BASE + 0x24) = AL_UART_CLOCK / (16 * 115200);
  REGISTER(AL_UART_BASE + 0x2c) = 0x70;  /* 8 bits, FIFO */
  REGISTER(AL_UART_BASE + 0x30) = 0x101; /* enabled, transmit */
}

void al_put(char c) {
  while (REGISTER(AL_UART_BASE + 0x18) & 0x20) continue; /* full */
  REGISTER(AL_UART_BASE) = (uint8_t)c;
}

#else /* semihosting: SYS_WRITEC */
void al_console_init(void) {}

void al_put(char c) {
  register uint32_t r0 __asm__("r0") = 3;
  register const char *r1 __asm__("r1") = &c;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
#endif

void al_puts(const char *text) {
  while (*text) al_put(*text++);
}

void al_put_text(const char *text, uint32_t size) {
  while (size--) al_put(*text++);
}

void al_put_unsigned(uint64_t number) {
  char digits[20];
  uint32_t n = 0;
  do digits[n++] = (char)('0' + number % 10);
  while (number /= 10);
  while (n) al_put(digits[--n]);
}

void al_put_int(int32_t number) {
  if (number < 0) al_put('-');
  al_put_unsigned(number < 0 ? 0u - (uint32_t)number : (uint32_t)number);
}

void al_put_hex(uint32_t number) {
  al_puts("0x");
  for (int shift = 28; shift >= 0; shift -= 4) al_put("0123456789abcdef"[number >> shift & 15]);
}
