/* Shared by the neural-network, reduction and quantize kernels. */
#ifndef AL_NN_H
#define AL_NN_H

#include <math.h>

#include "al_kernel.h"

/* Fails a kernel unless `condition` holds. `argument` is the one to blame. */
#define AL_NEED(condition, status, argument) \
  do { if (!(condition)) return al_fail(call, status, argument); } while (0)

/* Functions whose large frame must not be part of the caller's. */
#define AL_APART __attribute__((noinline))

#define AL_LOOP_TENSORS 4
#define AL_ALL_DIMS 0xffffffffu

/* Steps through some dimensions of up to four tensors at once, in logical order, one run of elements at a time:
 *
 *     for (al_loop_begin(&w, rank, sizes, AL_ALL_DIMS, 2, strides); w.more; al_loop_next(&w))
 *       for (uint32_t k = 0; k < w.run; k++)
 *         f(x + w.offset[0] + (int32_t)k * w.step[0], ...
 *
 * Neighbouring dimensions that lie without gaps in all tensors become one. */
typedef struct al_loop {
  bool more;
  uint8_t rank, count;              /* dimensions outside of the run; tensors */
  uint32_t run;                     /* elements */
  int32_t step[AL_LOOP_TENSORS];    /* between elements of the run */
  int32_t offset[AL_LOOP_TENSORS];  /* of the run's first element */
  int32_t size[AL_MAX_RANK], index[AL_MAX_RANK];
  int32_t stride[AL_LOOP_TENSORS][AL_MAX_RANK];
} al_loop;

/* `dims` has a bit for each dimension to step through; `strides` has `count` times AL_MAX_RANK entries. */
void al_loop_begin(al_loop *loop, uint32_t rank, const int32_t *sizes, uint32_t dims, uint32_t count,
                   int32_t (*strides)[AL_MAX_RANK]);
void al_loop_next(al_loop *loop);

/* A sum that carries its rounding errors along: the result is within about one rounding of the exact one. */
typedef struct al_sum {
  float high, low;
} al_sum;

static inline void al_sum_add(al_sum *sum, float x) {
  float t = sum->high + x;
  float z = t - sum->high;
  sum->low += (sum->high - (t - z)) + (x - z);
  sum->high = t;
}

static inline float al_sum_value(const al_sum *sum) {
  float value = sum->high + sum->low;
  return isfinite(value) ? value : sum->high; /* infinities make the error NaN */
}

/* Sum of squares of the differences of n numbers from their exact mean, given the sum of `squares` of those from the
 * rounded mean and the sum of these differences, the `rest`. */
static inline float al_sum_of_squares(const al_sum *squares, const al_sum *rest, float n) {
  float square = al_sum_value(squares), r = al_sum_value(rest);
  float exact = square - r * r / n;
  if (exact == exact) return exact > 0 ? exact : 0;
  return n > 0 ? square : NAN; /* infinite, or NaN */
}

#endif
