/* Shared by the files of the core; not for kernels. */
#ifndef AL_CORE_H
#define AL_CORE_H

#include "al_kernel.h"
#include "flatbuffer.h"

#define AL_FREED 0x80u /* bit of al_value.type between a FreeCall and the end of the execution */

/* Starts an error record; `error` NULL is allowed in the API, then `spare` is used. */
al_error *al_error_begin(al_error *error, al_error *spare);
al_status al_error_set(al_error *error, al_status status, const char *name, int32_t argument, uint32_t needed,
                       uint32_t available);

/* A segment of a checked file. */
const uint8_t *al_segment(const al_program *program, uint32_t number, uint32_t *size);
/* Bytes of a tensor at its largest size; its product of max(size, 1) fits in 31 bits. */
uint32_t al_table_nbytes(const uint8_t *tensor);
static inline const uint8_t *al_root(const al_program *program, uint32_t slot) {
  return fb_ref(program->data + program->root, slot);
}

/* Writes a result of a symbolic operator. Only slots that hold numbers may be written. */
al_status al_set_int(al_call *call, uint32_t i, int64_t value);
al_status al_set_bool(al_call *call, uint32_t i, bool value);
al_status al_set_double(al_call *call, uint32_t i, double value);

#endif
