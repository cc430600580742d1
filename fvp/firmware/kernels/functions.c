/* float32 only: a Cortex-M33 has no double FPU. Polynomials are minimax ones of relative error, which the comments
 * have; odd functions are x + x^3 p(x^2). fmaf is one instruction on a device and exact on the host. */
#include "functions.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Numbers as two floats. */
#define LN2 0x1.62e430p-1f
#define LN2_REST -0x1.05c610p-29f
#define QUARTER_PI 0x1.921fb6p-1f
#define QUARTER_PI_REST -0x1.777a5cp-26f

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* ------------------------------------------------------------ exponential functions */

/* e^x - 1 for |x| <= 1/2: degree 7, 5e-9. */
static float expm1_near_0(float x) {
  float p = fmaf(0x1.9f03p-13f, x, 0x1.6e805ep-10f);
  p = fmaf(p, x, 0x1.1114c2p-7f);
  p = fmaf(p, x, 0x1.5553aep-5f);
  p = fmaf(p, x, 0x1.55555p-3f);
  p = fmaf(p, x, 0.5f);
  return fmaf(p, x * x, x);
}

/* e^r - 1 and 2^n / 4, x = n ln 2 + r, |r| <= ln 2 / 2. A quarter, since sinh and cosh end later than e^x. Beyond the
 * ends results are infinite, or -1. The low bits of 1.5 * 2^23 + n are n. */
static float exp_parts(float x, float *quarter) {
  x = x > 89.7f ? 89.7f : x < -20 ? -20 : x;
  float shifted = fmaf(x, 0x1.715476p+0f, 0x1.8p23f), n = shifted - 0x1.8p23f;
  *quarter = float_of((bits_of(shifted) + 125) << 23);
  return expm1_near_0(fmaf(n, -LN2_REST, fmaf(n, -LN2, x)));
}

static float exp_quarter(float x) {
  float quarter, p = exp_parts(x, &quarter);
  return fmaf(p, quarter, quarter);
}

float al_expm1(float x) {
  if (x == 0) return x;
  if (fabsf(x) < 0.5f) return expm1_near_0(x);
  float quarter, p = exp_parts(x, &quarter);
  return 4 * fmaf(p, quarter, quarter - 0.25f);
}

float al_cosh(float x) {
  float q = exp_quarter(fabsf(x));
  return 2 * (q + 0.0625f / q);
}

/* Below 1.5: degree 9, 3e-9. */
float al_sinh(float x) {
  float a = fabsf(x), z = x * x;
  if (a >= 1.5f) {
    float q = exp_quarter(a);
    return copysignf(2 * (q - 0.0625f / q), x);
  }
  float p = fmaf(0x1.8459dcp-19f, z, 0x1.9f911ep-13f);
  p = fmaf(p, z, 0x1.11129ap-7f);
  p = fmaf(p, z, 0x1.55555p-3f);
  return fmaf(p, z * x, x);
}

/* Below 0.625: degree 11, 5e-9. */
float al_tanh(float x) {
  float a = fabsf(x), z = x * x;
  if (a >= 0.625f) return copysignf(1 - 0.5f / (exp_quarter(2 * a) + 0.25f), x);
  float p = fmaf(-0x1.750ce4p-8f, z, 0x1.51f8cep-6f);
  p = fmaf(p, z, -0x1.b835a4p-5f);
  p = fmaf(p, z, 0x1.1106f6p-3f);
  p = fmaf(p, z, -0x1.555532p-2f);
  return copysignf(fmaf(p, z * a, a), x);
}

/* Below 1: degree 15, 1.4e-9. From there 1 - e^g(x), degree 5, 1.6e-8; above 3.92 it is 1. */
float al_erf(float x) {
  float a = fabsf(x), z = x * x;
  if (a < 1) {
    float p = fmaf(0x1.4771fep-14f, z, -0x1.a3515ep-11f);
    p = fmaf(p, z, 0x1.53f224p-8f);
    p = fmaf(p, z, -0x1.b7f71ap-6f);
    p = fmaf(p, z, 0x1.ce2ce6p-4f);
    p = fmaf(p, z, -0x1.81273ep-2f);
    p = fmaf(p, z, 0x1.06eba8p-3f);
    return fmaf(p, x, x);
  }
  if (a > 3.95f) a = 3.95f;
  float g = fmaf(-0x1.2f5b64p-10f, a, 0x1.e60234p-7f);
  g = fmaf(g, a, -0x1.6bb926p-4f);
  g = fmaf(g, a, -0x1.4ef892p-1f);
  g = fmaf(g, a, -0x1.1e1c6cp+0f);
  g = fmaf(g, a, -0x1.574d96p-9f);
  return copysignf(fmaf(-4, exp_quarter(g), 1), x);
}

/* ------------------------------------------------------------ logarithms */

/* log(1 + x + y), y the smaller part. It is n ln 2 + log(1 + f), -1/4 <= f < 1/2; with s = f / (2 + f) the latter is
 * 2 atanh(s) = f - s (f - s^2 p(s^2)): 3e-9. */
static float log1p_sum(float x, float y) {
  float u = 1 + (x + y);
  if (!(u > 0)) return u == 0 ? -INFINITY : NAN;
  if (u == INFINITY) return u;
  int32_t n = (int32_t)(bits_of(u) - bits_of(0.75f)) >> 23;
  float scale = 0.25f * float_of((uint32_t)(129 - n) << 23); /* 2^-n, which can be subnormal */
  float f = fmaf(y, scale, fmaf(x, scale, scale - 1)), s = f / (2 + f), z = s * s;
  float p = fmaf(0x1.36eeb6p-2f, z, 0x1.992a9ap-2f);
  p = fmaf(p, z, 0x1.5555b4p-1f);
  p = fmaf(fmaf(p, z, -f), s, f);
  return fmaf((float)n, LN2, fmaf((float)n, LN2_REST, p));
}

float al_log1p(float x) { return x == 0 ? x : log1p_sum(x, 0); }

/* Below 0.75: degree 13, 7e-9. From there log(a + sqrt(a^2 + 1)). */
float al_asinh(float x) {
  float a = fabsf(x), z = x * x;
  if (a > 0x1p30f) return copysignf(log1p_sum(a, 0) + LN2, x);
  if (a >= 0.75f) return copysignf(log1p_sum(a, sqrtf(fmaf(a, a, 1)) - 1), x);
  float p = fmaf(0x1.31e8c4p-8f, z, -0x1.f5f06cp-7f);
  p = fmaf(p, z, 0x1.cd0158p-6f);
  p = fmaf(p, z, -0x1.6a8ffcp-5f);
  p = fmaf(p, z, 0x1.33126ap-4f);
  p = fmaf(p, z, -0x1.5554e2p-3f);
  return copysignf(fmaf(p, z * a, a), x);
}

float al_acosh(float x) {
  float t = x - 1;
  if (x > 0x1p30f) return al_asinh(x);
  if (x >= 2) return log1p_sum(t, sqrtf(fmaf(t, t, 2 * t)));
  return 2 * al_asinh(sqrtf(0.5f * t));
}

/* Below 0.5: degree 13, 1.4e-9. */
float al_atanh(float x) {
  float a = fabsf(x), z = x * x;
  if (a >= 0.5f) return copysignf(0.5f * log1p_sum(2 * a / (1 - a), 0), x);
  float p = fmaf(0x1.6947bep-3f, z, 0x1.a6978cp-5f);
  p = fmaf(p, z, 0x1.e4045cp-4f);
  p = fmaf(p, z, 0x1.234d6p-3f);
  p = fmaf(p, z, 0x1.99a678p-3f);
  p = fmaf(p, z, 0x1.55554p-2f);
  return fmaf(p, z * x, x);
}

/* ------------------------------------------------------------ angles */

/* newlib's sinf and cosf are glibc's if the FPU has doubles. */
float al_tan(float x) { return sinf(x) / cosf(x); }

/* The angle is some octants, and from there an arc of |t| <= 5/8, forwards or backwards: degree 13, 4e-9.
 * atan(t) = pi/4 + atan((t - 1) / (t + 1)). */
float al_atan2(float y, float x) {
  float a = fabsf(y), b = fabsf(x), octants = 0, sign = 1;
  if (a > b) {
    octants = 2;
    sign = -1;
  }
  float t = a > b ? b / a : a / b;
  if (a == b) t = a != 0; /* 0 / 0, infinite / infinite */
  if (signbit(x)) {
    octants = 4 - octants;
    sign = -sign;
  }
  if (t > 0.625f) {
    t = (t - 1) / (t + 1);
    octants += sign;
  }
  float z = t * t;
  float p = fmaf(0x1.c33a3ap-6f, z, -0x1.2009d8p-4f);
  p = fmaf(p, z, 0x1.b3b34ap-4f);
  p = fmaf(p, z, -0x1.2362d4p-3f);
  p = fmaf(p, z, 0x1.998826p-3f);
  p = fmaf(p, z, -0x1.55552ap-2f);
  p = fmaf(p, z * t, t) * sign;
  return copysignf(fmaf(octants, QUARTER_PI, fmaf(octants, QUARTER_PI_REST, p)), y);
}

float al_atan(float x) { return al_atan2(x, 1); }

/* asin(x) / x - 1 of z = x^2 <= 1/4: degree 5, 5e-9. */
static float asin_part(float z) {
  float p = fmaf(0x1.595c8cp-5f, z, 0x1.8c3e2ap-6f);
  p = fmaf(p, z, 0x1.747bbap-5f);
  p = fmaf(p, z, 0x1.330204p-4f);
  p = fmaf(p, z, 0x1.5555c8p-3f);
  return p * z;
}

/* Above 1/2: pi/2 - 2 asin(sqrt((1 - a) / 2)). In quarters of pi, whose difference from the root is exact. */
float al_asin(float x) {
  float a = fabsf(x);
  if (a <= 0.5f) return fmaf(asin_part(x * x), x, x);
  float z = 0.5f - 0.5f * a, s = -2 * sqrtf(z);
  float rest = fmaf(s, asin_part(z), 2 * QUARTER_PI_REST);
  return copysignf(QUARTER_PI + ((QUARTER_PI + s) + rest), x);
}

float al_acos(float x) {
  float a = fabsf(x);
  if (a <= 0.5f) return 2 * QUARTER_PI - fmaf(asin_part(x * x), x, x);
  float z = 0.5f - 0.5f * a, s = 2 * sqrtf(z);
  float arc = fmaf(s, asin_part(z), s);
  return x > 0 ? arc : 4 * QUARTER_PI - arc;
}
