/* Files, command line and exit of the host, by Arm's semihosting calls (QEMU, FVP, debug probes).
 *
 * Every call needs a host that answers: without one, BKPT ends in the fault handler.
 */
#ifndef AL_SEMIHOSTING_H
#define AL_SEMIHOSTING_H

#include <stdint.h>

/* Numbers of SYS_OPEN: the modes of fopen in the order r, rb, r+, r+b, w, wb, ... */
#define SH_READ 1  /* "rb" */
#define SH_WRITE 5 /* "wb" */

int sh_open(const char *path, int mode);                    /* handle, or -1 */
int sh_close(int handle);                                   /* 0, or -1 */
int sh_read(int handle, void *data, uint32_t size);         /* 0 if all bytes came, -1 if fewer (end of file) */
int sh_write(int handle, const void *data, uint32_t size);  /* 0 if all bytes went, -1 otherwise */
int32_t sh_length(int handle);                              /* bytes of a file, or -1 */
int sh_command_line(char *text, uint32_t size);             /* 0, or -1 if it is longer than size - 1 */
void sh_exit(int code) __attribute__((noreturn));

#endif
