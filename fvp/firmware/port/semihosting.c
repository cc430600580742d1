#include "semihosting.h"

#include <string.h>

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_FLEN = 0x0c, SYS_GET_CMDLINE = 0x15,
       SYS_EXIT_EXTENDED = 0x20 };
#define APPLICATION_EXIT 0x20026u

static int32_t call(uint32_t operation, const void *block) {
  register uint32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = block;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return (int32_t)r0;
}

int sh_open(const char *path, int mode) {
  uint32_t block[3] = {(uint32_t)(uintptr_t)path, (uint32_t)mode, strlen(path)};
  return call(SYS_OPEN, block);
}

int sh_close(int handle) {
  uint32_t block[1] = {(uint32_t)handle};
  return call(SYS_CLOSE, block) == 0 ? 0 : -1;
}

/* The host gives the number of bytes that it did not transfer. Pipes transfer a part at a time. */
static int transfer(uint32_t operation, int handle, uintptr_t data, uint32_t size) {
  while (size > 0) {
    uint32_t block[3] = {(uint32_t)handle, (uint32_t)data, size};
    uint32_t left = (uint32_t)call(operation, block);
    if (left >= size) return -1;
    data += size - left;
    size = left;
  }
  return 0;
}

int sh_read(int handle, void *data, uint32_t size) { return transfer(SYS_READ, handle, (uintptr_t)data, size); }

int sh_write(int handle, const void *data, uint32_t size) {
  return transfer(SYS_WRITE, handle, (uintptr_t)data, size);
}

int32_t sh_length(int handle) {
  uint32_t block[1] = {(uint32_t)handle};
  return call(SYS_FLEN, block);
}

int sh_command_line(char *text, uint32_t size) {
  uint32_t block[2] = {(uint32_t)(uintptr_t)text, size};
  return call(SYS_GET_CMDLINE, block) == 0 ? 0 : -1;
}

void sh_exit(int code) {
  uint32_t block[2] = {APPLICATION_EXIT, (uint32_t)code};
  for (;;) call(SYS_EXIT_EXTENDED, block);
}
