#include "flatbuffer.h"

uint32_t fb_field(const uint8_t *file, uint32_t table, uint32_t slot) {
  uint32_t vtable = table - fb_load32(file + table); /* the offset is signed: unsigned arithmetic wraps to the same */
  uint32_t entry = 4 + 2 * slot;
  if (entry + 2 > fb_load16(file + vtable)) return 0;
  uint32_t offset = fb_load16(file + vtable + entry);
  return offset ? table + offset : 0;
}

uint32_t fb_ref(const uint8_t *file, uint32_t table, uint32_t slot) {
  uint32_t field = fb_field(file, table, slot);
  return field ? field + fb_load32(file + field) : 0;
}

uint32_t fb_u8(const uint8_t *file, uint32_t table, uint32_t slot) {
  uint32_t field = fb_field(file, table, slot);
  return field ? file[field] : 0;
}

uint32_t fb_u32(const uint8_t *file, uint32_t table, uint32_t slot) {
  uint32_t field = fb_field(file, table, slot);
  return field ? fb_load32(file + field) : 0;
}

uint64_t fb_u64(const uint8_t *file, uint32_t table, uint32_t slot) {
  uint32_t field = fb_field(file, table, slot);
  return field ? fb_load64(file + field) : 0;
}

uint32_t fb_count(const uint8_t *file, uint32_t vector) { return vector ? fb_load32(file + vector) : 0; }

uint32_t fb_item(const uint8_t *file, uint32_t vector, uint32_t i) {
  uint32_t at = vector + 4 + 4 * i;
  return at + fb_load32(file + at);
}
