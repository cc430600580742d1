#include <float.h>
#include <string.h>

#include "nn.h"
#include "simd.h"

#if !AL_MVE

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

/* In four lanes, and one more sum for what is left. */
float al_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n) {
  al_sum total = {0};
  uint32_t quads = n / 4;
  while (quads > 0) {
    uint32_t block = quads < AL_BLOCK ? quads : AL_BLOCK;
    quads -= block;
    float a = 0, b = 0, c = 0, d = 0;
    for (; block > 0; block--, x += 4 * x_step, y += 4 * y_step) {
      a = fmaf(x[0], y[0], a);
      b = fmaf(x[x_step], y[y_step], b);
      c = fmaf(x[2 * x_step], y[2 * y_step], c);
      d = fmaf(x[3 * x_step], y[3 * y_step], d);
    }
    al_sum_add(&total, (a + b) + (c + d));
  }
  float rest = 0;
  for (uint32_t k = n % 4; k > 0; k--, x += x_step, y += y_step) rest += *x * *y;
  al_sum_add(&total, rest);
  return al_sum_value(&total);
}

void al_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                   uint32_t n) {
  for (uint32_t j = 0; j < n; j++) {
    const float *a = x, *b = m + j;
    al_sum total = {0};
    for (uint32_t k = depth; k > 0;) {
      uint32_t block = k < AL_BLOCK ? k : AL_BLOCK;
      k -= block;
      float sum = 0;
      for (; block > 0; block--, a += x_step, b += m_step) sum = fmaf(*b, *a, sum);
      al_sum_add(&total, sum);
    }
    y[j] = al_sum_value(&total);
  }
}

/* What a vector unit makes of a subnormal number. */
static float flushed(float x) { return fabsf(x) < FLT_MIN ? 0 : x; }

/* e^x for x <= 0 to 1 ULP, 0 below -87.33 (where it becomes subnormal), NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2;
 * the polynomial is the minimax one of relative error, 3e-9. */
static float exp_of(float x) {
  if (!(x >= -87.33f)) return x < 0 ? 0 : x;
  if (x > 0) return 1; /* a file may lay the result over x */
  float n = rintf(x * 0x1.715476p+0f);
  float r = fmaf(n, 0x1.05c610p-29f, fmaf(n, -0x1.62e430p-1f, x));
  float p = fmaf(0x1.6a23d0p-10f, r, 0x1.123a20p-7f);
  p = fmaf(p, r, 0x1.5558f2p-5f);
  p = fmaf(p, r, 0x1.555492p-3f);
  p = fmaf(p, r, 0x1.fffffcp-2f);
  p = fmaf(p, r * r, r) + 1;
  int32_t bits;
  memcpy(&bits, &p, sizeof bits);
  bits += (int32_t)n * (1 << 23);
  memcpy(&p, &bits, sizeof p);
  return p;
}

/* Sums in four lanes. The division by the total t: x * (1 / t), and its error once corrected. */
void al_softmax_run(const float *x, int32_t x_step, float *y, int32_t y_step, uint32_t n) {
  float top = -INFINITY;
  for (uint32_t i = 0; i < n; i++) top = x[(int32_t)i * x_step] > top ? x[(int32_t)i * x_step] : top;
  al_sum lanes[4] = {{0}}, all = {0};
  for (uint32_t i = 0; i < n; i++) {
    float e = exp_of(x[(int32_t)i * x_step] - top);
    y[(int32_t)i * y_step] = e;
    al_sum_add(&lanes[i % 4], e);
  }
  for (uint32_t lane = 0; lane < 4; lane++) al_sum_add(&all, lanes[lane].high);
  for (uint32_t lane = 0; lane < 4; lane++) al_sum_add(&all, lanes[lane].low);
  float total = al_sum_value(&all), inverse = 1 / total;
  for (uint32_t i = 0; i < n; i++, y += y_step) {
    float result = flushed(*y * inverse);
    *y = flushed(fmaf(flushed(fmaf(result, -total, *y)), inverse, result));
  }
}

#endif
