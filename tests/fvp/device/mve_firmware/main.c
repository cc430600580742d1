/* Compares simd_mve.c with simd_portable.c and with plain references, on the CPU itself. Prints a line
 * "check NAME cases=N failures=N" for each group, and the numbers of the first failure of it. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "move.h"
#include "nn.h"
#include "simd_mve.c" /* for its static functions too */

#if !AL_MVE
#error "these checks need MVE"
#endif

/* port.h, which has an al_put of its own */
void al_puts(const char *text);
void al_put_unsigned(uint64_t number);
int main(void);

/* simd_portable.c, compiled with these names */
void portable_quantize_run(const float *x, void *y, uint8_t dtype, uint32_t n, const al_quantizer *q);
void portable_dequantize_run(const void *x, uint8_t dtype, float *y, uint32_t n, float scale, float zero);
float portable_dot_run(const float *x, int32_t x_step, const float *y, int32_t y_step, uint32_t n);
void portable_matmul_run(const float *x, int32_t x_step, const float *m, int32_t m_step, float *y, uint32_t depth,
                         uint32_t n);
void portable_softmax_run(const float *x, int32_t x_step, float *y, int32_t y_step, uint32_t n);

#define MOST 70u /* elements */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static uint32_t state = 1;

static uint32_t random_word(void) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}
static uint32_t below(uint32_t n) { return random_word() % n; }
static float uniform(float limit) { return ((float)(random_word() >> 8) * 0x1p-23f - 1) * limit; }
static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t cases, failures;

/* `a` to `c`: where it is. */
static void expect(bool holds, uint32_t a, uint32_t b, uint32_t c) {
  cases++;
  if (holds || failures++) return;
  al_puts("first failure at ");
  al_put_unsigned(a);
  al_puts(" ");
  al_put_unsigned(b);
  al_puts(" ");
  al_put_unsigned(c);
  al_puts("\n");
}

static void report(const char *name) {
  al_puts("check ");
  al_puts(name);
  al_puts(" cases=");
  al_put_unsigned(cases);
  al_puts(" failures=");
  al_put_unsigned(failures);
  al_puts("\n");
  cases = failures = 0;
}

/* ------------------------------------------------------------ integers */

static const uint8_t dtypes[] = {AL_U8, AL_I8, AL_I16, AL_I32};
static const int32_t lows[] = {0, INT8_MIN, INT16_MIN, INT32_MIN};
static const int32_t highs[] = {UINT8_MAX, INT8_MAX, INT16_MAX, INT32_MAX};

/* Ties, ends of types, and what is no number. */
static float awkward(void) {
  static const float values[] = {0.0f, -0.0f, 0.5f, -0.5f, 1.5f, 2.5f, -126.5f, 127.5f, 254.5f, 255.5f, 8388607.5f,
                                 16777217.0f, 2147483520.0f, 2147483648.0f, -2147483648.0f, 4e9f, FLT_MAX, -FLT_MAX,
                                 INFINITY, -INFINITY, NAN, FLT_MIN, -1e-40f, 1e-45f};
  uint32_t kind = below(8);
  if (kind == 0) return values[below(COUNT(values))];
  if (kind == 1) return (float)(int32_t)below(600) * 0.5f - 150;
  if (kind == 2) return float_of(random_word());
  return uniform(kind == 3 ? 3e9f : kind == 4 ? 40000 : 200);
}

static const float scales[] = {1, 0.5f, 0.0078125f, 0.37f, -1, 3e-3f, 1e5f, FLT_MIN, 1e-39f, 1e-45f, 2e37f, 3e38f, 0,
                               INFINITY, -INFINITY, NAN};

static void check_quantize(void) {
  static float x[MOST + 4];
  static uint8_t y[2][4 * MOST + 48];
  for (uint32_t d = 0; d < COUNT(dtypes); d++) {
    uint32_t size = al_dtype_size((al_dtype)dtypes[d]);
    for (uint32_t s = 0; s < 2 * COUNT(scales); s++) {
      for (uint32_t n = 0; n <= MOST; n++) {
        float span = (float)highs[d] - (float)lows[d];
        al_quantizer q = {s < COUNT(scales) ? scales[s] : uniform(30), 0, (float)lows[d], (float)highs[d]};
        if (below(4)) q.zero = rintf(q.low + span * (float)below(100) / 100);
        uint32_t kind = below(8);
        if (kind == 0) q.low++;         /* -127, and a range without 0 for uint8 */
        if (kind == 1) q.high = q.low;
        if (kind == 2) q.low = q.high / 2;
        for (uint32_t i = 0; i < COUNT(x); i++) x[i] = awkward();
        const float *from = x + below(4);
        uint32_t at = 8 + size * below(8);
        memset(y, 0xa5, sizeof y);
        al_quantize_run(from, y[0] + at, dtypes[d], n, &q);
        portable_quantize_run(from, y[1] + at, dtypes[d], n, &q);
        expect(memcmp(y[0], y[1], sizeof y[0]) == 0, d, s, n);
      }
    }
  }
  report("quantize");
}

static void check_dequantize(void) {
  static uint32_t words[MOST + 8];
  static float y[2][MOST + 12];
  uint8_t *x = (uint8_t *)words;
  for (uint32_t d = 0; d < COUNT(dtypes); d++) {
    uint32_t size = al_dtype_size((al_dtype)dtypes[d]);
    for (uint32_t s = 0; s < 2 * COUNT(scales); s++) {
      for (uint32_t n = 0; n <= MOST; n++) {
        float scale = s < COUNT(scales) ? scales[s] : uniform(3);
        float zero = below(4) ? (float)(lows[d] / 2 + (int32_t)below(200)) : below(2) ? 0 : (float)lows[d];
        for (uint32_t i = 0; i < COUNT(words); i++) words[i] = random_word();
        const uint8_t *from = x + size * below(8);
        uint32_t at = 4 + below(4);
        memset(y, 0xa5, sizeof y);
        al_dequantize_run(from, dtypes[d], y[0] + at, n, scale, zero);
        portable_dequantize_run(from, dtypes[d], y[1] + at, n, scale, zero);
        expect(memcmp(y[0], y[1], sizeof y[0]) == 0, d, s, n);
      }
    }
  }
  report("dequantize");
}

/* ------------------------------------------------------------ copies */

#define AREA 80000u
static uint8_t source[AREA], target[2][AREA];

/* `bytes` are enough for the copy; false if they are more than there are. */
static bool begin_copy(uint32_t bytes) {
  if (bytes > AREA) return false;
  uint32_t word = random_word();
  for (uint32_t i = 0; i < bytes; i++) source[i] = (uint8_t)((word = word * 1664525 + 1013904223) >> 24);
  for (uint32_t k = 0; k < 2; k++) memset(target[k], 0xa5, bytes);
  return true;
}

/* One element after the other. */
static void copy_plainly(const al_view *to, const al_view *from) {
  int32_t at[AL_MAX_RANK] = {0};
  for (;;) {
    ptrdiff_t t = 0, f = 0;
    for (uint32_t d = 0; d < to->rank; d++) {
      if (to->sizes[d] == 0) return;
      t += (ptrdiff_t)at[d] * to->strides[d];
      f += (ptrdiff_t)at[d] * from->strides[d];
    }
    memcpy(to->data + t * (ptrdiff_t)to->element, from->data + f * (ptrdiff_t)to->element, to->element);
    uint32_t d = to->rank;
    while (d > 0 && ++at[d - 1] == to->sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

/* A box whose elements lie in a random order of its dimensions, some with gaps; how many elements it spans. */
static uint32_t scatter_dims(al_view *view) {
  uint32_t order[AL_MAX_RANK];
  int32_t stride = 1 + (below(4) == 0);
  for (uint32_t d = 0; d < view->rank; d++) {
    uint32_t k = below(d + 1);
    order[d] = order[k];
    order[k] = d;
  }
  for (uint32_t k = 0; k < view->rank; k++) {
    view->strides[order[k]] = stride;
    stride *= view->sizes[order[k]];
    if (below(8) == 0) stride += 3;
  }
  return (uint32_t)stride;
}

static void check_copy(void) {
  static const uint32_t elements[] = {1, 1, 1, 4, 4, 2, 8};
  for (uint32_t trial = 0; trial < 700; trial++) {
    uint32_t element = elements[below(COUNT(elements))], rank = 1 + below(4);
    al_view to = {.element = element, .rank = rank}, from;
    int32_t most = rank == 1 ? 71 : rank == 2 ? 45 : rank == 3 ? 13 : 6;
    for (uint32_t d = 0; d < rank; d++) to.sizes[d] = (int32_t)below((uint32_t)most);
    if (rank == 3 && below(2)) to.sizes[below(3)] = 1 + (int32_t)below(40), to.sizes[below(3)] = 1 + (int32_t)below(4);
    from = to;
    uint32_t span = scatter_dims(&to);
    uint32_t from_span = scatter_dims(&from);
    if (span < from_span) span = from_span;
    uint32_t bytes = span * element + 64;
    if (!begin_copy(bytes)) continue;
    uint32_t odd = element == 1 ? below(16) : below(4) ? element * below(4) : below(16);
    from.data = source + 16 + odd;
    for (uint32_t d = 0; d < rank; d++) {
      if (to.sizes[d] == 0) continue;
      if (below(8) == 0) from.strides[d] = 0; /* broadcast */
      if (below(8) == 0) {                    /* back to front */
        al_view_advance(&from, d, from.sizes[d] - 1);
        from.strides[d] = -from.strides[d];
      }
    }
    uint32_t at = 16 + (below(2) ? odd : element * below(4));
    to.data = target[0] + at;
    al_copy_strided(&to, &from);
    to.data = target[1] + at;
    copy_plainly(&to, &from);
    expect(memcmp(target[0], target[1], bytes) == 0, trial, element, rank);
  }
  /* every length of a line and every step of it; the largest step that offsets of 16 bits allow, and one more */
  static const int32_t steps[] = {1, 2, 3, 17, 64, 9362, 9363};
  for (uint32_t n = 0; n <= MOST; n++) {
    for (uint32_t k = 0; k < COUNT(steps) * 4; k++) {
      int32_t step = steps[k % COUNT(steps)];
      uint32_t bytes = (uint32_t)step * n + 2 * n + 64;
      if (!begin_copy(bytes)) continue;
      al_view to = {.data = target[0] + 16 + n % 7, .element = 1, .rank = 1, .sizes = {(int32_t)n}, .strides = {1}};
      al_view from = {.data = source + 16 + n % 5, .element = 1, .rank = 1, .sizes = {(int32_t)n}, .strides = {step}};
      if (k >= COUNT(steps)) to.strides[0] = step, from.strides[0] = k >= 2 * COUNT(steps) ? 2 : 1;
      if (k >= 3 * COUNT(steps)) from.strides[0] = -2, from.data += 2 * n;
      al_copy_strided(&to, &from);
      to.data += AREA;
      copy_plainly(&to, &from);
      expect(memcmp(target[0], target[1], bytes) == 0, 1000 + n, k, (uint32_t)step);
    }
  }
  report("copy");
}

/* memcpy, memmove and memset of port/memory.c. */
static void check_memory(void) {
  enum { SIZE = 320 };
  for (uint32_t n = 0; n <= 210; n++) {
    for (uint32_t k = 0; k < 16; k++) {
      uint32_t from = 32 + k % 4, to = 32 + k / 4, near = below(2 * n + 2);
      begin_copy(SIZE);
      memcpy(target[0] + to, source + from, n);
      for (uint32_t i = 0; i < n; i++) target[1][to + i] = source[from + i];
      expect(memcmp(target[0], target[1], SIZE) == 0, n, k, 0);

      begin_copy(SIZE);
      uint32_t distance = near % (SIZE - 64 - n + 1);
      bool up = k % 2;
      memcpy(target[0], source, SIZE);
      memmove(target[0] + 32 + (up ? distance : 0), target[0] + 32 + (up ? 0 : distance), n);
      for (uint32_t i = 0; i < SIZE; i++) target[1][i] = source[i];
      for (uint32_t i = 0; i < n; i++) target[1][32 + (up ? distance : 0) + i] = source[32 + (up ? 0 : distance) + i];
      expect(memcmp(target[0], target[1], SIZE) == 0, n, k, 1);

      begin_copy(SIZE);
      memset(target[0] + to, (int)(k - 8), n);
      for (uint32_t i = 0; i < n; i++) *(volatile uint8_t *)&target[1][to + i] = (uint8_t)(k - 8);
      expect(memcmp(target[0], target[1], SIZE) == 0, n, k, 2);
    }
  }
  report("memory");
}

/* ------------------------------------------------------------ sums of products */

static const int32_t dot_steps[][2] = {{1, 1}, {1, 3}, {2, 1}, {-1, 5}, {0, 1}, {4, -3}};
static const uint32_t lengths[] = {127, 128, 129, 255, 256, 257, 515, 1000};
#define LENGTHS (MOST + 1 + COUNT(lengths))
static uint32_t length_of(uint32_t i) { return i <= MOST ? i : lengths[i - MOST - 1]; }
static float left[5100], right[5100];

/* Integers of which all sums are exact, or random numbers; NaN where nothing may be read. */
static const float *operand(float *memory, int32_t step, uint32_t n, bool exact) {
  for (uint32_t i = 0; i < COUNT(left); i++) memory[i] = NAN;
  uint32_t first = below(4) + (step < 0 ? (uint32_t)-step * n : 0);
  for (uint32_t k = 0; k < n; k++) {
    memory[(int32_t)first + (int32_t)k * step] = exact ? (float)(int32_t)below(64) - 32 : uniform(2);
  }
  return memory + first;
}

/* Error in roundings (2^-24) of the sum of magnitudes: the largest. */
static double worst;

static bool close_to(float found, double exact, double magnitude) {
  if (magnitude == 0) return found == 0;
  double error = fabs((double)found - exact) / magnitude * 0x1p24;
  if (error > worst) worst = error;
  return error <= 4;
}

static void put_thousandths(const char *name, double value) {
  al_puts(name);
  al_put_unsigned((uint64_t)(value * 1000));
  al_puts("\n");
}

static void report_sums(const char *name) {
  put_thousandths("largest error in 1/1000 of a rounding: ", worst);
  report(name);
  worst = 0;
}

/* The same bits, or both NaN. */
static bool same(float a, float b) { return a != a ? b != b : memcmp(&a, &b, sizeof a) == 0; }

static void check_dot(void) {
  for (uint32_t s = 0; s < COUNT(dot_steps); s++) {
    int32_t a = dot_steps[s][0], b = dot_steps[s][1];
    for (uint32_t i = 0; i < LENGTHS; i++) {
      uint32_t n = length_of(i);
      for (uint32_t exact = 0; exact < 2; exact++) {
        const float *x = operand(left, a, n, exact), *y = operand(right, b, n, exact);
        float found = al_dot_run(x, a, y, b, n), portable = portable_dot_run(x, a, y, b, n);
        expect(same(found, portable), s, n, 0);
        double sum = 0, magnitude = 0;
        for (int32_t k = 0; k < (int32_t)n; k++) {
          double product = (double)x[k * a] * (double)y[k * b];
          sum += product;
          magnitude += fabs(product);
        }
        expect(exact ? (double)found == sum : close_to(found, sum, magnitude), s, n, 1);
      }
    }
  }
  static const float specials[] = {NAN, INFINITY, -INFINITY};
  for (uint32_t k = 0; k < 27 * 3; k++) {
    float *x = (float *)(uintptr_t)operand(left, 1, 27, true), *y = (float *)(uintptr_t)operand(right, 1, 27, true);
    y[k / 3] = 1;
    x[k / 3] = specials[k % 3];
    expect(same(al_dot_run(x, 1, y, 1, 27), portable_dot_run(x, 1, y, 1, 27)), 100, k, 0);
  }
  report_sums("dot");
}

static void check_matmul(void) {
  static float y[2][MOST + 8];
  for (uint32_t n = 0; n <= MOST; n++) {
    static const uint32_t depths[] = {0, 1, 2, 3, 7, 16, 127, 128, 129, 300};
    for (uint32_t i = 0; i < 2 * COUNT(depths); i++) {
      uint32_t depth = depths[i / 2], width = n + below(3);
      bool exact = i % 2;
      if (depth * width + 4 > COUNT(right)) depth = 60;
      int32_t step = 1 + (int32_t)below(3);
      const float *x = operand(left, step, depth, exact), *m = operand(right, 1, depth * width, exact);
      bool special = depth > 0 && n > 0 && below(4) == 0;
      if (special) ((float *)(uintptr_t)m)[below(depth * width)] = below(2) ? NAN : INFINITY;
      memset(y, 0xa5, sizeof y);
      al_matmul_run(x, step, m, (int32_t)width, y[0] + 4, depth, n);
      portable_matmul_run(x, step, m, (int32_t)width, y[1] + 4, depth, n);
      for (uint32_t j = 0; j < n; j++) {
        double sum = 0, magnitude = 0;
        for (uint32_t k = 0; k < depth; k++) {
          double product = (double)x[(int32_t)k * step] * (double)m[k * width + j];
          sum += product;
          magnitude += fabs(product);
        }
        float found = y[0][4 + j], plain = y[1][4 + j];
        expect(same(found, plain), n, depth, j);
        if (isfinite(sum)) expect(exact ? (double)found == sum : close_to(found, sum, magnitude), n, depth, j);
      }
      expect(memcmp(y[0], y[1], 16) == 0 && memcmp(y[0] + 4 + n, y[1] + 4 + n, 16) == 0, n, depth, 999);
    }
  }
  report_sums("matmul");
}

/* ------------------------------------------------------------ softmax */

/* In units in the last place of `exact` as a float32. */
static double ulps(float found, double exact) {
  int exponent;
  frexp(exact, &exponent);
  return fabs((double)found - exact) / ldexp(1, exponent - 24);
}

static void check_exp(void) {
  double most = 0;
  for (uint32_t i = 0; i < 15000; i++) {
    float x[4], y[4];
    for (uint32_t k = 0; k < 4; k++) x[k] = -(float)i * (87.33f / 15000) + uniform(1e-3f);
    if (i % 4 == 0) x[1] = uniform(1e-5f);
    for (uint32_t k = 0; k < 4; k++) x[k] = x[k] > 0 ? -x[k] : x[k] < -87.33f ? -87.33f : x[k];
    vst1q_f32(y, exp_of(vld1q_f32(x)));
    for (uint32_t k = 0; k < 4; k++) {
      double error = ulps(y[k], exp((double)x[k]));
      if (error > most) most = error;
      expect(error <= 1, i, k, 0);
    }
  }
  float ends[4] = {-87.34f, -1e30f, -INFINITY, NAN};
  vst1q_f32(ends, exp_of(vld1q_f32(ends)));
  expect(ends[0] == 0 && ends[1] == 0 && ends[2] == 0 && ends[3] != ends[3], 1, 0, 0);
  put_thousandths("largest error in 1/1000 of an ULP: ", most);
  report("exp");
}

static void check_softmax(void) {
  static float x[2 * 1000 + 4], y[2][3 * 1000 + 8];
  static const float special[] = {NAN, INFINITY, -INFINITY};
  static const int32_t steps[][2] = {{1, 1}, {2, 3}, {2, 1}, {1, 2}};
  double most = 0;
  for (uint32_t i = 0; i < LENGTHS; i++) {
    uint32_t n = length_of(i);
    for (uint32_t trial = 0; trial < 9 * COUNT(steps); trial++) {
      uint32_t kind = trial % 9;
      int32_t step = steps[trial / 9][0], to = steps[trial / 9][1];
      for (uint32_t k = 0; k < COUNT(x); k++) x[k] = NAN;
      float *from = x + below(4), limit = kind == 0 ? 40 : kind == 1 ? 500 : kind == 2 ? 1e-3f : kind == 8 ? 88 : 4;
      for (int32_t k = 0; k < (int32_t)n; k++) from[k * step] = uniform(limit) + (kind == 3 ? 1000 : 0);
      if (kind >= 4 && kind < 7 && n > 0) from[(int32_t)below(n) * step] = special[kind - 4];
      if (kind == 7) for (int32_t k = 0; k < (int32_t)n; k++) from[k * step] = -INFINITY;
      memset(y, 0xa5, sizeof y);
      portable_softmax_run(from, step, y[1] + 4, to, n);
      double top = -INFINITY, total = 0;
      for (int32_t k = 0; k < (int32_t)n; k++) top = from[k * step] > top ? from[k * step] : top;
      for (int32_t k = 0; k < (int32_t)n; k++) total += exp((double)(from[k * step] - (float)top));
      if (i % 2) { /* in place */
        for (int32_t k = 0; k < (int32_t)n; k++) y[0][4 + k * to] = from[k * step];
        al_softmax_run(y[0] + 4, to, y[0] + 4, to, n);
      } else {
        al_softmax_run(from, step, y[0] + 4, to, n);
      }
      for (int32_t k = 0; k < (int32_t)n; k++) {
        float result = y[0][4 + k * to];
        expect(same(result, y[1][4 + k * to]), n, trial, (uint32_t)k);
        double exact = exp((double)(from[k * step] - (float)top)) / total;
        if (exact != exact) continue;
        double error = exact < 1.2e-38 ? fabs((double)result) / 1.2e-38 : ulps(result, exact);
        if (error > most) most = error;
        expect(error <= 3, n, trial, (uint32_t)k);
        y[0][4 + k * to] = y[1][4 + k * to] = 0;
      }
      if (n == 0 || kind == 4 || kind == 5 || kind == 7) continue;
      expect(memcmp(y[0], y[1], sizeof y[0]) == 0, n, trial, 999);
    }
  }
  put_thousandths("largest error in 1/1000 of an ULP: ", most);
  report("softmax");
}

#ifndef CHECKS
#define CHECKS \
  check_quantize(), check_dequantize(), check_copy(), check_memory(), check_dot(), check_matmul(), check_exp(), \
      check_softmax()
#endif

int main(void) {
  CHECKS;
  al_puts("done\n");
  return 0;
}
