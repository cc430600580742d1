/* Inner loops that vector instructions speed up. simd_portable.c is the meaning of each, to the bit: it sums floats in
 * the lanes and blocks of a vector unit, with fused multiply-adds, so that a result does not depend on the CPU. A
 * target's own version may count numbers below FLT_MIN as 0 in sums. */
#ifndef AL_SIMD_H
#define AL_SIMD_H

#include <math.h>

#include "al_kernel.h"

/* simd_mve.c instead of simd_portable.c; -DAL_PORTABLE is for comparisons. */
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2) && !defined(AL_PORTABLE)
#define AL_MVE 1
#else
#define AL_MVE 0
#endif

/* y = clamp(round_half_even(x * inverse) + zero, low, high), in float32. NaN gives 0. `dtype`: u8, i8, i16 or i32,
 * whose range includes low and high. */
typedef struct al_quantizer {
  float inverse; /* 1 / scale */
  float zero, low, high;
} al_quantizer;
static inline int32_t al_quantize_one(float x, const al_quantizer *q) {
  float y = rintf(x * q->inverse) + q->zero;
  if (y != y) return 0;
  if (y < q->low) y = q->low;
  if (y > q->high) y = q->high;
  return y >= 2147483648.0f ? INT32_MAX : (int32_t)y;
}

void al_quantize_run(const float *x, void *y, uint8_t dtype, uint32_t n, const al_quantizer *q);

/* y = (x - zero) * scale, in float32. `dtype` of x: u8, i8, i16 or i32. */
void al_dequantize_run(const void *x, uint8_t dtype, float *y, uint32_t n, float scale, float zero);

/* A lane adds up this many products between the points where rounding errors are collected. */
#define AL_BLOCK 32u

/* Sum of x[k * x_step] * y[k * y_step]. Steps of 1 are the fast case. */
float al_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n);

/* y[j] = sum of x[k * x_step] * m[k * m_step + j] over k < depth, for j < n. */
void al_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                   uint32_t n);

/* Softmax of the n numbers x[i * x_step]; y may be x. Results below FLT_MIN are 0. Steps of 1 are the fast case. */
void al_softmax_run(const float *x, int32_t x_step, float *y, int32_t y_step, uint32_t n);

/* A plane of elements: to[i * to_step[0] + j * to_step[1]] = from[i * from_step[0] + j * from_step[1]] for i < size[0],
 * j < size[1]; steps are in elements. False if nothing is done because plain code is as good, or needed. */
#if AL_MVE
bool al_copy_plane(void *to, const int32_t *to_step, const void *from, const int32_t *from_step, const int32_t *size,
                   uint32_t element);
#else
static inline bool al_copy_plane(void *to, const int32_t *to_step, const void *from, const int32_t *from_step,
                                 const int32_t *size, uint32_t element) {
  (void)to, (void)to_step, (void)from, (void)from_step, (void)size, (void)element;
  return false;
}
#endif

#endif
