/* Inner loops over contiguous memory that vector instructions speed up. simd_portable.c is the meaning of each; a
 * target's own version must give the same bits for quantize and dequantize, and float results as good for the rest. */
#ifndef AL_SIMD_H
#define AL_SIMD_H

#include "al_kernel.h"

/* y = clamp(round_half_even(x * inverse) + zero, low, high), in float32. NaN gives 0. `dtype`: u8, i8, i16 or i32,
 * whose range includes low and high. */
typedef struct al_quantizer {
  float inverse; /* 1 / scale */
  float zero, low, high;
} al_quantizer;
void al_quantize_run(const float *x, void *y, uint8_t dtype, uint32_t n, const al_quantizer *q);

/* y = (x - zero) * scale, in float32. `dtype` of x: u8, i8, i16 or i32. */
void al_dequantize_run(const void *x, uint8_t dtype, float *y, uint32_t n, float scale, float zero);

/* Sum of x[k * x_step] * y[k * y_step]. Steps of 1 are the fast case. */
float al_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n);

/* y[j] = sum of x[k * x_step] * m[k * m_step + j] over k < depth, for j < n. */
void al_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                   uint32_t n);

/* Softmax of n numbers; y may be x. */
void al_softmax_run(const float *x, float *y, uint32_t n);

#endif
