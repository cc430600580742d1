#include "nn.h"
#include "simd.h"

#if !AL_MVE

/* Sums have this many elements between the points where rounding errors are collected. */
#define BLOCK 64u

void al_quantize_run(const float *x, void *y, uint8_t dtype, uint32_t n, const al_quantizer *q) {
  switch (dtype) {
    case AL_U8:
      for (uint32_t i = 0; i < n; i++) ((uint8_t *)y)[i] = (uint8_t)al_quantize_one(x[i], q);
      break;
    case AL_I8:
      for (uint32_t i = 0; i < n; i++) ((int8_t *)y)[i] = (int8_t)al_quantize_one(x[i], q);
      break;
    case AL_I16:
      for (uint32_t i = 0; i < n; i++) ((int16_t *)y)[i] = (int16_t)al_quantize_one(x[i], q);
      break;
    default:
      for (uint32_t i = 0; i < n; i++) ((int32_t *)y)[i] = al_quantize_one(x[i], q);
  }
}

void al_dequantize_run(const void *x, uint8_t dtype, float *y, uint32_t n, float scale, float zero) {
  switch (dtype) {
    case AL_U8:
      for (uint32_t i = 0; i < n; i++) y[i] = ((float)((const uint8_t *)x)[i] - zero) * scale;
      break;
    case AL_I8:
      for (uint32_t i = 0; i < n; i++) y[i] = ((float)((const int8_t *)x)[i] - zero) * scale;
      break;
    case AL_I16:
      for (uint32_t i = 0; i < n; i++) y[i] = ((float)((const int16_t *)x)[i] - zero) * scale;
      break;
    default:
      for (uint32_t i = 0; i < n; i++) y[i] = ((float)((const int32_t *)x)[i] - zero) * scale;
  }
}

float al_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n) {
  al_sum total = {0};
  while (n > 0) {
    uint32_t block = n < BLOCK ? n : BLOCK;
    float even = 0, odd = 0;
    for (uint32_t k = block / 2; k > 0; k--) {
      even += x[0] * y[0];
      odd += x[x_step] * y[y_step];
      x += 2 * x_step;
      y += 2 * y_step;
    }
    if (block & 1) even += x[0] * y[0];
    al_sum_add(&total, even + odd);
    n -= block;
  }
  return al_sum_value(&total);
}

void al_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                   uint32_t n) {
  for (uint32_t j = 0; j < n; j++) y[j] = al_dot_run(x, x_step, m + j, m_step, depth);
}

void al_softmax_run(const float *x, float *y, uint32_t n) {
  float top = -INFINITY;
  for (uint32_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  al_sum sum = {0};
  for (uint32_t i = 0; i < n; i++) {
    y[i] = expf(x[i] - top);
    al_sum_add(&sum, y[i]);
  }
  float total = al_sum_value(&sum);
  for (uint32_t i = 0; i < n; i++) y[i] /= total;
}

#endif
