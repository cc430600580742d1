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

/* Assembler: the compiler has no loop whose last round is predicated (LETP), and does not step with the accesses. */
__attribute__((naked)) void *memcpy(void *restrict to, const void *restrict from, size_t size) {
  (void)to, (void)from, (void)size;
  __asm__ volatile(
      "push {r0, lr}\n"
      "lsrs r3, r2, #6\n and r2, r2, #63\n"
      "wls lr, r3, 2f\n"
      "1: vldrb.8 q0, [r1], #16\n vldrb.8 q1, [r1], #16\n vldrb.8 q2, [r1], #16\n vldrb.8 q3, [r1], #16\n"
      "vstrb.8 q0, [r0], #16\n vstrb.8 q1, [r0], #16\n vstrb.8 q2, [r0], #16\n vstrb.8 q3, [r0], #16\n"
      "le lr, 1b\n"
      "2: wlstp.8 lr, r2, 4f\n"
      "3: vldrb.8 q0, [r1], #16\n vstrb.8 q0, [r0], #16\n letp lr, 3b\n"
      "4: pop {r0, pc}\n");
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
