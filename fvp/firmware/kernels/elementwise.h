/* What elementwise kernels share: a way over tensors of any layout with broadcasting, and one driver that finds the
 * data type to compute in by torch's rules and calls a small function for each element.
 */
#ifndef AL_ELEMENTWISE_H
#define AL_ELEMENTWISE_H

#include "al_kernel.h"

#define AL_RUNS_TENSORS 4
#define AL_MAX_OPERANDS 4

/* Goes over tensors in the memory order of the first one, to whose sizes the others are broadcast. Dimensions are
 * merged where every tensor allows it, so that tensors of one layout are a single run. */
typedef struct al_runs {
  uint32_t tensors, rank;
  uint32_t run;                                   /* elements of a run, always the same */
  uint32_t offset[AL_RUNS_TENSORS];               /* of the first element of the run, in elements */
  uint32_t step[AL_RUNS_TENSORS][AL_MAX_RANK];    /* innermost dimension first: step[k][0] is the one within a run */
  uint32_t size[AL_MAX_RANK], count[AL_MAX_RANK];
} al_runs;

/* tensors[0] has elements; the others can be broadcast to it. */
void al_runs_begin(al_runs *runs, uint32_t count, const al_tensor *const *tensors);
/* Goes to the next run; false after the last. */
bool al_runs_next(al_runs *runs);
/* True if writing `out` element by element would change elements of `in` before they are read. */
bool al_clashes(const al_tensor *out, const al_tensor *in);
/* Elements of `src`, broadcast and converted, into `out`, which has its sizes. */
al_status al_copy_elements(al_call *call, al_tensor *out, const al_tensor *src, int32_t argument);

typedef enum al_role {
  AL_PROMOTES,    /* takes part in type promotion; numbers wrap around to the type that is computed in */
  AL_LIMIT,       /* likewise, but a number must fit that type (clamp) */
  AL_PARAMETER,   /* a number that must fit that type and has no say in it */
  AL_ALPHA,       /* likewise, and no fraction for integers (add, sub) */
  AL_MASK         /* a tensor of bool or uint8, no say in it */
} al_role;

typedef struct al_operand {
  const al_tensor *tensor; /* NULL for a number */
  double d;                /* a number as each of the two */
  int64_t i;
  uint8_t dtype;           /* of a number: AL_I64, AL_F32, AL_BOOL */
  uint8_t role;
  uint8_t argument;
} al_operand;

/* Operands of one call, in the order in which the element functions find them. Begin with {.call = call}. */
typedef struct al_elementwise {
  al_call *call;
  uint32_t count;
  al_operand operands[AL_MAX_OPERANDS];
} al_elementwise;

/* One element: v[k] is operand k. */
typedef float al_float_fn(const float *v);
typedef int64_t al_int_fn(int64_t *v);
/* For integer functions that cannot compute: the call ends with AL_VALUE. */
#define AL_REFUSE(v) ((v)[AL_MAX_OPERANDS] = 1, 0)

typedef enum al_rule {
  AL_GIVES_BOOL = 1,    /* the functions give 0 or 1, out may have any type */
  AL_NO_BOOL = 2,       /* does not compute in bool */
  AL_NO_BOOL_INPUT = 4, /* no operand is bool */
  AL_FLOAT_ONLY = 8     /* does not take integers */
} al_rule;

/* Adds a tensor or a number, whichever argument `i` is. */
void al_take(al_elementwise *e, uint32_t i, al_role role);
/* Adds a number that is no argument. */
void al_take_number(al_elementwise *e, double value);
/* Computes and writes argument `out`. Without an integer function integers are computed as float, without a float
 * function floats are refused. */
al_status al_compute(al_elementwise *e, uint32_t out, uint32_t rules, al_float_fn *f, al_int_fn *i);

/* (x, out) and (x, y, out); x and y may be numbers. */
al_status al_unary(al_call *call, uint32_t rules, al_float_fn *f, al_int_fn *i);
al_status al_binary(al_call *call, uint32_t rules, al_float_fn *f, al_int_fn *i);

/* The out tensor, argument `i`: the last one but for the returned value. A file with arguments of another operator
 * must not get a result. */
al_tensor *al_out_of(al_call *call, uint32_t i);
/* True if argument `i` is this string. */
bool al_string_is(al_call *call, uint32_t i, const char *text);

#endif
