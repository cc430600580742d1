/* Reading of a FlatBuffer that al_program_load has checked: tables, vectors and fields by address, NULL is "absent".
 *
 * Scalars are read bytewise (memcpy), so that their alignment does not matter. Vectors of 4-byte elements are used in
 * place, which the check has made sure of. Slots and tables: ExecuTorch's schema/program.fbs.
 */
#ifndef AL_FLATBUFFER_H
#define AL_FLATBUFFER_H

#include <stdint.h>
#include <string.h>

enum { PROGRAM_VERSION, PROGRAM_PLANS, PROGRAM_CONSTANT_BUFFER, PROGRAM_INLINE_DELEGATES, PROGRAM_SEGMENTS,
       PROGRAM_CONSTANTS, PROGRAM_STATES, PROGRAM_NAMED_DATA };
enum { PLAN_NAME, PLAN_CONTAINER, PLAN_VALUES, PLAN_INPUTS, PLAN_OUTPUTS, PLAN_CHAINS, PLAN_OPERATORS, PLAN_DELEGATES,
       PLAN_ARENAS };
enum { UNION_TYPE, UNION_VALUE };
enum { TENSOR_DTYPE, TENSOR_STORAGE_OFFSET, TENSOR_SIZES, TENSOR_DIM_ORDER, TENSOR_REQUIRES_GRAD, TENSOR_DATA,
       TENSOR_ALLOCATION, TENSOR_LAYOUT, TENSOR_DYNAMISM, TENSOR_EXTRA };
enum { ALLOCATION_ID, ALLOCATION_LOW, ALLOCATION_HIGH };
enum { EXTRA_SEGMENT, EXTRA_NAME, EXTRA_LOCATION };
enum { CHAIN_INPUTS, CHAIN_OUTPUTS, CHAIN_INSTRUCTIONS };
enum { CALL_INDEX, CALL_ARGS };
enum { MOVE_FROM, MOVE_TO };
enum { JUMP_CONDITION, JUMP_DESTINATION };
enum { OPERATOR_NAME, OPERATOR_OVERLOAD };
enum { DELEGATE_ID, DELEGATE_DATA };
enum { REFERENCE_LOCATION, REFERENCE_INDEX };
enum { SEGMENT_OFFSET, SEGMENT_SIZE };
enum { PARTS_SEGMENT, PARTS_OFFSETS };
enum { INSTRUCTION_KERNEL = 1, INSTRUCTION_DELEGATE, INSTRUCTION_MOVE, INSTRUCTION_JUMP_FALSE, INSTRUCTION_FREE };

static inline uint32_t fb_load16(const uint8_t *at) {
  uint16_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static inline uint32_t fb_load32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static inline uint64_t fb_load64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

const uint8_t *fb_field(const uint8_t *table, uint32_t slot); /* where a field is */
const uint8_t *fb_ref(const uint8_t *table, uint32_t slot);   /* table or vector that a field refers to */
uint32_t fb_u8(const uint8_t *table, uint32_t slot);
uint32_t fb_u32(const uint8_t *table, uint32_t slot);
uint64_t fb_u64(const uint8_t *table, uint32_t slot);
uint32_t fb_count(const uint8_t *vector);                   /* 0 for an absent vector */
const uint8_t *fb_item(const uint8_t *vector, uint32_t i);  /* table in a vector of tables */

/* Elements of a vector that is there. */
static inline const uint8_t *fb_items(const uint8_t *vector) { return vector + 4; }

static inline uint32_t fb_word(const uint8_t *vector, uint32_t i) { return fb_load32(vector + 4 + 4 * (size_t)i); }

static inline uint64_t fb_long(const uint8_t *vector, uint32_t i) { return fb_load64(vector + 4 + 8 * (size_t)i); }

#endif
