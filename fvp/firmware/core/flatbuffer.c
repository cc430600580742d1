#include "flatbuffer.h"

const uint8_t *fb_field(const uint8_t *table, uint32_t slot) {
  const uint8_t *vtable = table - (int32_t)fb_load32(table);
  uint32_t entry = 4 + 2 * slot;
  uint32_t offset = entry + 2 > fb_load16(vtable) ? 0 : fb_load16(vtable + entry);
  return offset ? table + offset : NULL;
}

const uint8_t *fb_ref(const uint8_t *table, uint32_t slot) {
  const uint8_t *field = fb_field(table, slot);
  return field ? field + fb_load32(field) : NULL;
}

uint32_t fb_u8(const uint8_t *table, uint32_t slot) {
  const uint8_t *field = fb_field(table, slot);
  return field ? *field : 0;
}

uint32_t fb_u32(const uint8_t *table, uint32_t slot) {
  const uint8_t *field = fb_field(table, slot);
  return field ? fb_load32(field) : 0;
}

uint64_t fb_u64(const uint8_t *table, uint32_t slot) {
  const uint8_t *field = fb_field(table, slot);
  return field ? fb_load64(field) : 0;
}

uint32_t fb_count(const uint8_t *vector) { return vector ? fb_load32(vector) : 0; }

const uint8_t *fb_item(const uint8_t *vector, uint32_t i) {
  const uint8_t *at = vector + 4 + 4 * (size_t)i;
  return at + fb_load32(at);
}
