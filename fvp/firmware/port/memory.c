/* memcpy, memmove and memset with MVE: those of newlib-nano go byte by byte. */
#include <stddef.h>
#include <stdint.h>

#if defined(__ARM_FEATURE_MVE) && !defined(AL_PORTABLE)
#include <arm_mve.h>

#pragma GCC optimize("O2", "no-tree-loop-distribute-patterns") /* or memset would call itself */

static inline mve_pred16_t rest(size_t size) { return vctp8q((uint32_t)(size % 16)); }

void *memset(void *to, int value, size_t size) {
  uint8_t *d = to;
  uint8x16_t v = vdupq_n_u8((uint8_t)value);
  for (size_t n = size / 16; n > 0; n--, d += 16) vst1q_u8(d, v);
  vst1q_p_u8(d, v, rest(size));
  return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
  uint8_t *d = to;
  const uint8_t *s = from;
  for (size_t n = size / 16; n > 0; n--, d += 16, s += 16) vst1q_u8(d, vld1q_u8(s));
  vst1q_p_u8(d, vldrbq_z_u8(s, rest(size)), rest(size));
  return to;
}

void *memmove(void *to, const void *from, size_t size) {
  if ((uintptr_t)to - (uintptr_t)from >= size) return memcpy(to, from, size);
  uint8_t *d = (uint8_t *)to + size / 16 * 16; /* overlapping: from the end */
  const uint8_t *s = (const uint8_t *)from + size / 16 * 16;
  vst1q_p_u8(d, vldrbq_z_u8(s, rest(size)), rest(size));
  for (size_t n = size / 16; n > 0; n--) {
    d -= 16, s -= 16;
    vst1q_u8(d, vld1q_u8(s));
  }
  return to;
}
#endif
