/* The loops of simd.h in MVE (Helium) of Armv8.1-M, four float32 lanes at a time.
 *
 * MVE counts subnormal numbers as 0. quantize and dequantize leave the scales where that shows to plain code; float
 * results below 1.2e-38 are 0, and operands below it count as 0. The conditions LT and LE of VCMP hold for NaN: here
 * are GT and GE. */
#include "simd.h"

#if AL_MVE
#include <arm_mve.h>
#include <float.h>

#include "nn.h"

/* Loops of vectors pay off with low-overhead branches, which -Os does not give. */
#pragma GCC optimize("O2", "no-tree-loop-distribute-patterns")

#define INLINE static inline __attribute__((always_inline))

/* ------------------------------------------------------------ integers and back */

/* Clamping in integers is the same: saturation has made large numbers and infinities the ends of int32. NaN is 0, which
 * is in the range. */
#define QUANTIZE(type, store)                                                                  \
  do {                                                                                         \
    type *to = y;                                                                              \
    for (uint32_t k = quads; k > 0; k--, from += 4, to += 4) {                                 \
      float32x4_t scaled = vaddq_f32(vrndnq_f32(vmulq_f32(vld1q_f32(from), inverse)), zero);   \
      store(to, vminq_s32(vmaxq_s32(vcvtq_s32_f32(scaled), low), high));                       \
    }                                                                                          \
  } while (0)

/* Plain code for the last few, and for what vectors cannot do: a subnormal number counts as a scale, or times a large
 * one. */
void al_quantize_run(const float *x, void *y, uint8_t dtype, uint32_t n, const al_quantizer *q) {
  float size = fabsf(q->inverse);
  uint32_t done = 0, quads = n / 4;
  if (quads > 0 && size >= FLT_MIN && size <= 0x1p124f && q->low <= 0 && q->high >= 0) {
    float32x4_t inverse = vdupq_n_f32(q->inverse), zero = vdupq_n_f32(q->zero);
    int32x4_t low = vcvtq_s32_f32(vdupq_n_f32(q->low)), high = vcvtq_s32_f32(vdupq_n_f32(q->high));
    const float *from = x;
    if (dtype == AL_I32) QUANTIZE(int32_t, vstrwq_s32);
    else if (dtype == AL_I16) QUANTIZE(int16_t, vstrhq_s32);
    else QUANTIZE(int8_t, vstrbq_s32);
    done = 4 * quads;
  }
  for (; done < n; done++) al_store_int(y, done, dtype, al_quantize_one(x[done], q));
}

#define DEQUANTIZE(type, load, convert)                                                        \
  do {                                                                                         \
    const type *from = x;                                                                      \
    for (uint32_t k = quads; k > 0; k--, from += 4, to += 4) {                                 \
      vst1q_f32(to, vmulq_f32(vsubq_f32(convert(load(from)), zeros), scales));                 \
    }                                                                                          \
  } while (0)

void al_dequantize_run(const void *x, uint8_t dtype, float *y, uint32_t n, float scale, float zero) {
  uint32_t done = 0, quads = n / 4;
  if (quads > 0 && isnormal(scale)) {
    float32x4_t scales = vdupq_n_f32(scale), zeros = vdupq_n_f32(zero);
    float *to = y;
    if (dtype == AL_U8) DEQUANTIZE(uint8_t, vldrbq_u32, vcvtq_f32_u32);
    else if (dtype == AL_I8) DEQUANTIZE(int8_t, vldrbq_s32, vcvtq_f32_s32);
    else if (dtype == AL_I16) DEQUANTIZE(int16_t, vldrhq_s32, vcvtq_f32_s32);
    else DEQUANTIZE(int32_t, vldrwq_s32, vcvtq_f32_s32);
    done = 4 * quads;
  }
  for (; done < n; done++) y[done] = ((float)(int32_t)al_load_int(x, done, dtype) - zero) * scale;
}

/* ------------------------------------------------------------ copies */

/* Vectors of `lanes` elements along each line; the last one overlaps the one before it. */
#define COPY_LINES(type, lanes, copy)                                                          \
  for (int32_t line = 0; line < lines; line++) {                                               \
    type *t = (type *)to + line * to_line;                                                     \
    const type *f = (const type *)from + line * from_line;                                     \
    for (int32_t k = count / lanes; k > 0; k--, t += lanes * to_next, f += lanes * from_next) { \
      copy;                                                                                    \
    }                                                                                          \
    if (count % lanes == 0) continue;                                                          \
    t -= (lanes - count % lanes) * to_next;                                                    \
    f -= (lanes - count % lanes) * from_next;                                                  \
    copy;                                                                                      \
  }

bool al_copy_plane(void *to, const int32_t *to_step, const void *from, const int32_t *from_step, const int32_t *size,
                   uint32_t element) {
  uint32_t inner = size[0] < 32 && size[1] > size[0] ? 1 : 0;
  int32_t count = size[inner], to_next = to_step[inner], from_next = from_step[inner];
  int32_t lines = size[1 - inner], to_line = to_step[1 - inner], from_line = from_step[1 - inner];
  if (count < 8 || to_next < 0 || from_next < 0) return false;
  if (element == 1) {
    const int32_t most = UINT16_MAX / 7; /* offsets have as many bits as the lanes */
    if (to_next > most || from_next > most) return false;
    uint16x8_t lanes = vidupq_n_u16(0, 1);
    uint16x8_t put = vmulq_n_u16(lanes, (uint16_t)to_next), get = vmulq_n_u16(lanes, (uint16_t)from_next);
    if (to_next == 1) {
      COPY_LINES(uint8_t, 8, vstrbq_u16(t, vldrbq_gather_offset_u16(f, get)))
    } else {
      COPY_LINES(uint8_t, 8, vstrbq_scatter_offset_u16(t, put, vldrbq_gather_offset_u16(f, get)))
    }
    return true;
  }
  if (element != 4 || ((uintptr_t)to | (uintptr_t)from) % 4) return false;
  uint32x4_t lanes = vidupq_n_u32(0, 1);
  uint32x4_t put = vmulq_n_u32(lanes, (uint32_t)to_next), get = vmulq_n_u32(lanes, (uint32_t)from_next);
  COPY_LINES(uint32_t, 4,
             vstrwq_scatter_shifted_offset_u32(t, put, vldrwq_gather_shifted_offset_u32(f, get)))
  return true;
}

/* ------------------------------------------------------------ sums of products */

INLINE float32x4_t load(const float *x, mve_pred16_t p) { return vldrwq_z_f32(x, p); }

INLINE float sum_of(float32x4_t v) {
  return (vgetq_lane_f32(v, 0) + vgetq_lane_f32(v, 1)) + (vgetq_lane_f32(v, 2) + vgetq_lane_f32(v, 3));
}

float al_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n) {
  al_sum total = {0};
  uint32_t quads = n / 4;
  while (quads > 0) {
    uint32_t block = quads < AL_BLOCK ? quads : AL_BLOCK;
    quads -= block;
    float32x4_t sum = vdupq_n_f32(0);
    if (x_step == 1 && y_step == 1) {
      for (; block > 0; block--, x += 4, y += 4) sum = vfmaq_f32(sum, vld1q_f32(x), vld1q_f32(y));
    } else {
      const uint32x4_t lanes = vidupq_n_u32(0, 1);
      const uint32x4_t to_x = vmulq_n_u32(lanes, (uint32_t)x_step), to_y = vmulq_n_u32(lanes, (uint32_t)y_step);
      for (; block > 0; block--, x += 4 * x_step, y += 4 * y_step) {
        sum = vfmaq_f32(sum, vldrwq_gather_shifted_offset_f32(x, to_x), vldrwq_gather_shifted_offset_f32(y, to_y));
      }
    }
    al_sum_add(&total, sum_of(sum));
  }
  float rest = 0;
  for (uint32_t k = n % 4; k > 0; k--, x += x_step, y += y_step) rest += *x * *y;
  al_sum_add(&total, rest);
  return al_sum_value(&total);
}

/* al_sum of nn.h in each lane. */
typedef struct sums {
  float32x4_t high, low;
} sums;

INLINE void add(sums *sum, float32x4_t x) {
  float32x4_t t = vaddq_f32(sum->high, x);
  float32x4_t z = vsubq_f32(t, sum->high);
  float32x4_t lost = vaddq_f32(vsubq_f32(sum->high, vsubq_f32(t, z)), vsubq_f32(x, z));
  sum->low = vaddq_f32(sum->low, lost);
  sum->high = t;
}

INLINE float32x4_t value_of(const sums *sum) {
  float32x4_t value = vaddq_f32(sum->high, sum->low);
  return vpselq_f32(value, sum->high, vcmpgeq_f32(vdupq_n_f32(FLT_MAX), vabsq_f32(value)));
}

/* Eight columns at once; the last eight overlap those before them. Fewer than eight in fours. */
void al_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                   uint32_t n) {
  for (uint32_t j = 0; j < n;) {
    bool wide = n >= 8;
    if (wide && j > n - 8) j = n - 8;
    mve_pred16_t p = vctp32q(n - j);
    const float *a = x, *b = m + j;
    sums left = {vdupq_n_f32(0), vdupq_n_f32(0)}, right = left;
    for (uint32_t k = depth; k > 0;) {
      uint32_t block = k < AL_BLOCK ? k : AL_BLOCK;
      float32x4_t s = vdupq_n_f32(0), t = s;
      k -= block;
      if (wide) {
        for (; block > 0; block--, a += x_step, b += m_step) {
          s = vfmaq_n_f32(s, vld1q_f32(b), *a);
          t = vfmaq_n_f32(t, vld1q_f32(b + 4), *a);
        }
      } else {
        for (; block > 0; block--, a += x_step, b += m_step) s = vfmaq_n_f32(s, load(b, p), *a);
      }
      add(&left, s);
      add(&right, t);
    }
    vstrwq_p_f32(y + j, value_of(&left), p);
    j += 4;
    if (!wide) continue;
    vst1q_f32(y + j, value_of(&right));
    j += 4;
  }
}

/* ------------------------------------------------------------ softmax */

/* e^x for x <= 0 to 1 ULP, 0 below -87.33 (where it becomes subnormal), NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2;
 * the polynomial is the minimax one of relative error, 3e-9. */
INLINE float32x4_t exp_of(float32x4_t x) {
  float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 0x1.715476p+0f));
  float32x4_t r = vfmaq_n_f32(x, n, -0x1.62e430p-1f);
  r = vfmaq_n_f32(r, n, 0x1.05c610p-29f);
  float32x4_t p = vdupq_n_f32(0x1.6a23d0p-10f);
  p = vfmasq_n_f32(p, r, 0x1.123a20p-7f);
  p = vfmasq_n_f32(p, r, 0x1.5558f2p-5f);
  p = vfmasq_n_f32(p, r, 0x1.555492p-3f);
  p = vfmasq_n_f32(p, r, 0x1.fffffcp-2f);
  p = vaddq_n_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), 1);
  int32x4_t bits = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23));
  return vdupq_m_n_f32(vreinterpretq_f32_s32(bits), 0, vcmpgtq_f32(vdupq_n_f32(-87.33f), x));
}

/* Every `step`th number, the first is x[i]: those of the lanes p. */
typedef struct line {
  float *first;
  uint32x4_t lanes; /* offsets */
  int32_t step;
} line;

INLINE line line_of(const float *x, int32_t step) {
  return (line){(float *)x, vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)step), step};
}

INLINE float32x4_t get(const line *x, uint32_t i, mve_pred16_t p, bool dense) {
  if (dense) return load(x->first + i, p);
  return vldrwq_gather_shifted_offset_z_f32(x->first + (int32_t)i * x->step, x->lanes, p);
}

INLINE void put(const line *y, uint32_t i, float32x4_t value, mve_pred16_t p, bool dense) {
  if (dense) vstrwq_p_f32(y->first + i, value, p);
  else vstrwq_scatter_shifted_offset_p_f32(y->first + (int32_t)i * y->step, y->lanes, value, p);
}

/* The division by the total t: x * (1 / t), and its error once corrected. */
INLINE void softmax(const line *x, const line *y, uint32_t n, bool dense) {
  float32x4_t most = vdupq_n_f32(-INFINITY);
  for (uint32_t i = 0; i < n; i += 4) {
    mve_pred16_t p = vctp32q(n - i);
    most = vmaxnmq_m_f32(most, most, get(x, i, p, dense), p);
  }
  float top = vmaxnmvq_f32(-INFINITY, most);

  sums sum = {vdupq_n_f32(0), vdupq_n_f32(0)};
  for (uint32_t i = 0; i < n; i += 4) {
    mve_pred16_t p = vctp32q(n - i);
    float32x4_t e = exp_of(vsubq_n_f32(get(x, i, p, dense), top));
    put(y, i, e, p, dense);
    add(&sum, vpselq_f32(e, vdupq_n_f32(0), p));
  }
  float lanes[8];
  vst1q_f32(lanes, sum.high);
  vst1q_f32(lanes + 4, sum.low);
  al_sum all = {0};
  for (uint32_t i = 0; i < 8; i++) al_sum_add(&all, lanes[i]);
  float total = al_sum_value(&all), inverse = 1 / total;

  for (uint32_t i = 0; i < n; i += 4) {
    mve_pred16_t p = vctp32q(n - i);
    float32x4_t e = get(y, i, p, dense), result = vmulq_n_f32(e, inverse);
    put(y, i, vfmaq_n_f32(result, vfmaq_n_f32(e, result, -total), inverse), p, dense);
  }
}

void al_softmax_run(const float *x, int32_t x_step, float *y, int32_t y_step, uint32_t n) {
  line from = line_of(x, x_step), to = line_of(y, y_step);
  if (x_step == 1 && y_step == 1) softmax(&from, &to, n, true);
  else softmax(&from, &to, n, false);
}

#endif
