#include "elementwise.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------ runs */

void al_runs_begin(al_runs *w, uint32_t count, const al_tensor *const *tensors) {
  int32_t strides[AL_RUNS_TENSORS][AL_MAX_RANK];
  const al_tensor *out = tensors[0];
  w->tensors = count;
  w->rank = 0;
  for (uint32_t k = 0; k < count; k++) {
    w->offset[k] = 0;
    al_strides(tensors[k], strides[k]);
  }
  for (uint32_t place = out->rank; place-- > 0;) {
    uint32_t d = out->dim_order[place];
    uint32_t size = (uint32_t)out->sizes[d];
    if (size == 1) continue;
    uint32_t r = w->rank;
    bool merges = r > 0;
    for (uint32_t k = 0; k < count; k++) {
      uint32_t missing = (uint32_t)out->rank - tensors[k]->rank;
      bool constant = d < missing || tensors[k]->sizes[d - missing] == 1;
      w->step[k][r] = constant ? 0 : (uint32_t)strides[k][d - missing];
      merges = merges && w->step[k][r] == w->step[k][r - 1] * w->size[r - 1];
    }
    if (merges) {
      w->size[r - 1] *= size;
      continue;
    }
    w->size[r] = size;
    w->count[r] = 0;
    w->rank++;
  }
  if (w->rank == 0) {
    for (uint32_t k = 0; k < count; k++) w->step[k][0] = 0;
    w->size[0] = 1;
    w->rank = 1;
  }
  w->run = w->size[0];
}

bool al_runs_next(al_runs *w) {
  for (uint32_t d = 1; d < w->rank; d++) {
    bool carry = ++w->count[d] == w->size[d];
    for (uint32_t k = 0; k < w->tensors; k++) {
      w->offset[k] += w->step[k][d];
      if (carry) w->offset[k] -= w->step[k][d] * w->size[d];
    }
    if (!carry) return true;
    w->count[d] = 0;
  }
  return false;
}

bool al_clashes(const al_tensor *out, const al_tensor *in) {
  uintptr_t a = (uintptr_t)out->data, b = (uintptr_t)in->data;
  if (a >= b + al_nbytes(in) || b >= a + al_nbytes(out)) return false;
  bool in_place = a == b && al_same_layout(out, in) &&
                  al_dtype_size((al_dtype)out->dtype) == al_dtype_size((al_dtype)in->dtype);
  return !in_place;
}

/* ------------------------------------------------------------ operands */

void al_take(al_elementwise *e, uint32_t i, al_role role) {
  const al_value *value = al_arg(e->call, i);
  al_operand *o = &e->operands[e->count++];
  *o = (al_operand){.role = (uint8_t)role, .argument = (uint8_t)i};
  if (!value) return;
  bool number = role == AL_PARAMETER || role == AL_ALPHA;
  if (value->type == AL_TENSOR && !number) {
    o->tensor = al_tensor_arg(e->call, i);
    return;
  }
  o->d = al_scalar_arg(e->call, i);
  o->i = al_int_scalar_arg(e->call, i);
  o->dtype = value->type == AL_DOUBLE ? AL_F32 : value->type == AL_BOOLEAN ? AL_BOOL : AL_I64;
}

void al_take_number(al_elementwise *e, double value) {
  e->operands[e->count++] = (al_operand){.d = value, .i = al_truncate(value), .dtype = AL_F32,
                                             .role = AL_PARAMETER};
}

/* ------------------------------------------------------------ data types */

#define NO_TYPE 255

static uint8_t promote(uint8_t a, uint8_t b) {
  if (a == b || b == NO_TYPE) return a;
  if (a == NO_TYPE) return b;
  if (a == AL_F32 || b == AL_BOOL) return a;
  if (b == AL_F32 || a == AL_BOOL) return b;
  if (a == AL_U8) return b == AL_I8 ? AL_I16 : b;
  if (b == AL_U8) return a == AL_I8 ? AL_I16 : a;
  return a > b ? a : b;
}

/* Tensors without dimensions, and numbers even less, only have a say if they are of a higher kind. */
static uint8_t combine(uint8_t higher, uint8_t lower) {
  bool decided = higher != NO_TYPE && higher != AL_BOOL && lower != AL_F32;
  return decided ? higher : promote(higher, lower);
}

static al_status common_dtype(al_elementwise *e, uint32_t rules, uint8_t *common) {
  uint8_t dimensioned = NO_TYPE, single = NO_TYPE, number = NO_TYPE;
  for (uint32_t k = 0; k < e->count; k++) {
    const al_operand *o = &e->operands[k];
    uint8_t dtype = o->tensor ? o->tensor->dtype : o->dtype;
    bool wrong = !al_computes(dtype) || (dtype == AL_BOOL && rules & AL_NO_BOOL_INPUT && o->role == AL_PROMOTES);
    if (o->role == AL_MASK) wrong = !o->tensor || (dtype != AL_BOOL && dtype != AL_U8);
    if (wrong) return al_fail(e->call, AL_DTYPE, o->argument);
    if (o->role > AL_LIMIT) continue;
    uint8_t *level = !o->tensor ? &number : o->tensor->rank ? &dimensioned : &single;
    *level = promote(*level, dtype);
  }
  *common = combine(dimensioned, combine(single, number));
  return AL_OK;
}

static int64_t wrap(int64_t value, uint8_t dtype) {
  switch (dtype) {
    case AL_U8: return (uint8_t)value;
    case AL_I8: return (int8_t)value;
    case AL_I16: return (int16_t)value;
    case AL_I32: return (int32_t)value;
    case AL_BOOL: return value != 0;
    default: return value;
  }
}

/* torch's rule for numbers: uint8 takes negative ones down to -255. */
static bool fits(const al_operand *o, uint8_t dtype) {
  if (dtype == AL_BOOL) return true;
  if (dtype == AL_F32) return !isfinite(o->d) || fabs(o->d) <= (double)FLT_MAX;
  if (dtype == AL_U8) return fabs(o->d) <= 255;
  double limit = (double)(1ull << (8 * al_dtype_size((al_dtype)dtype) - 1));
  return o->d >= -limit && o->d <= limit - 1;
}

static al_status check_number(al_elementwise *e, const al_operand *o, uint8_t common) {
  if (o->role == AL_PROMOTES) return AL_OK;
  bool fraction = o->dtype == AL_F32 && common != AL_F32, flag = o->dtype == AL_BOOL && common != AL_BOOL;
  if (o->role == AL_ALPHA && (fraction || flag)) return al_fail(e->call, AL_VALUE, o->argument);
  return fits(o, common) ? AL_OK : al_fail(e->call, AL_VALUE, o->argument);
}

/* ------------------------------------------------------------ loops */

/* What changes from element to element: `out` first, then the tensors that have more than one. */
typedef struct loop {
  al_runs runs;
  const al_tensor *tensors[AL_RUNS_TENSORS];
  uint8_t slot[AL_RUNS_TENSORS];
  uint8_t common, result; /* data types that are computed in and given */
} loop;

/* Operands of one element, behind them its result (for an integer function before: whether it refuses). */
typedef union row {
  float f[AL_MAX_OPERANDS + 1];
  int64_t i[AL_MAX_OPERANDS + 1];
} row;
#define RESULT AL_MAX_OPERANDS
#define ROWS 12

static int64_t load_int(const al_tensor *t, uint32_t at, uint8_t common) {
  int64_t value = al_load_int(t->data, at, t->dtype);
  return t->dtype == common ? value : wrap(value, common);
}

/* Elements come and go by columns, so that a data type is looked at once for several. */
#define COLUMN(number, statement)                                \
  case number:                                                   \
    for (; n > 0; n--, at += step, rows++) statement;            \
    break
#define OTHERS(statement)                                        \
  default:                                                       \
    for (; n > 0; n--, at += step, rows++) statement
#define AT(type) (((type *)t->data)[at])

static void load_floats(row *rows, uint32_t slot, const al_tensor *t, uint32_t at, uint32_t step, uint32_t n) {
  switch (t->dtype) {
    COLUMN(AL_F32, rows->f[slot] = AT(float));
    COLUMN(AL_BOOL, rows->f[slot] = AT(uint8_t) != 0);
    COLUMN(AL_I32, rows->f[slot] = (float)AT(int32_t));
    OTHERS(rows->f[slot] = al_load_float(t->data, at, t->dtype));
  }
}

static void load_ints(row *rows, uint32_t slot, const al_tensor *t, uint32_t at, uint32_t step, uint32_t n,
                      uint8_t common) {
  switch (t->dtype == common ? t->dtype : 255) {
    COLUMN(AL_I8, rows->i[slot] = AT(int8_t));
    COLUMN(AL_I32, rows->i[slot] = AT(int32_t));
    COLUMN(AL_I64, rows->i[slot] = AT(int64_t));
    COLUMN(AL_BOOL, rows->i[slot] = AT(uint8_t) != 0);
    OTHERS(rows->i[slot] = load_int(t, at, common));
  }
}

static void store_floats(const row *rows, const al_tensor *t, uint32_t at, uint32_t n) {
  const uint32_t step = 1;
  switch (t->dtype) {
    COLUMN(AL_F32, AT(float) = rows->f[RESULT]);
    COLUMN(AL_BOOL, AT(uint8_t) = rows->f[RESULT] != 0);
    OTHERS(al_store_float(t->data, at, t->dtype, rows->f[RESULT]));
  }
}

static void store_ints(const row *rows, const al_tensor *t, uint32_t at, uint32_t n, uint8_t result) {
  const uint32_t step = 1;
  switch (t->dtype == result ? t->dtype : 255) {
    COLUMN(AL_I8, AT(int8_t) = (int8_t)rows->i[RESULT]);
    COLUMN(AL_I32, AT(int32_t) = (int32_t)rows->i[RESULT]);
    COLUMN(AL_I64, AT(int64_t) = rows->i[RESULT]);
    COLUMN(AL_BOOL, AT(uint8_t) = rows->i[RESULT] != 0);
    OTHERS(al_store_int(t->data, at, t->dtype, wrap(rows->i[RESULT], result)));
  }
}

/* The result's step is 1: the order is that of its memory. False if the function refuses an element. */
static bool run_ints(const loop *l, row *rows, uint32_t from, uint32_t n, al_int_fn *f) {
  const al_runs *r = &l->runs;
  int64_t refused = 0;
  for (uint32_t k = 1; k < r->tensors; k++) {
    load_ints(rows, l->slot[k], l->tensors[k], r->offset[k] + from * r->step[k][0], r->step[k][0], n, l->common);
  }
  for (row *v = rows; v < rows + n; v++) {
    v->i[RESULT] = 0;
    int64_t value = f(v->i);
    refused |= v->i[RESULT];
    v->i[RESULT] = value;
  }
  store_ints(rows, l->tensors[0], r->offset[0] + from, n, l->result);
  return !refused;
}

static void run_floats(const loop *l, row *rows, uint32_t from, uint32_t n, al_float_fn *f) {
  const al_runs *r = &l->runs;
  for (uint32_t k = 1; k < r->tensors; k++) {
    load_floats(rows, l->slot[k], l->tensors[k], r->offset[k] + from * r->step[k][0], r->step[k][0], n);
  }
  for (row *v = rows; v < rows + n; v++) v->f[RESULT] = f(v->f);
  store_floats(rows, l->tensors[0], r->offset[0] + from, n);
}

/* float32 throughout, one or two tensors. */
static void run_float32(const loop *l, float *v, al_float_fn *f) {
  const al_runs *r = &l->runs;
  float *y = (float *)l->tensors[0]->data + r->offset[0];
  const float *a = (const float *)l->tensors[1]->data + r->offset[1];
  float *to_a = &v[l->slot[1]];
  uint32_t n = r->run, a_step = r->step[1][0];
  if (r->tensors == 2) {
    for (; n > 0; n--, a += a_step) {
      *to_a = *a;
      *y++ = f(v);
    }
    return;
  }
  const float *b = (const float *)l->tensors[2]->data + r->offset[2];
  float *to_b = &v[l->slot[2]];
  uint32_t b_step = r->step[2][0];
  for (; n > 0; n--, a += a_step, b += b_step) {
    *to_a = *a;
    *to_b = *b;
    *y++ = f(v);
  }
}

static bool is_float32(const loop *l) {
  for (uint32_t k = 0; k < l->runs.tensors; k++) {
    if (l->tensors[k]->dtype != AL_F32) return false;
  }
  return l->runs.tensors == 2 || l->runs.tensors == 3;
}

/* `first` has the operands that are numbers. */
static __attribute__((noinline)) bool run_all(loop *l, const row *first, al_float_fn *f, al_int_fn *i) {
  if (f && is_float32(l)) {
    row v = *first;
    do {
      run_float32(l, v.f, f);
    } while (al_runs_next(&l->runs));
    return true;
  }
  row rows[ROWS];
  for (uint32_t n = 0; n < ROWS; n++) rows[n] = *first;
  bool good = true;
  do {
    for (uint32_t done = 0; done < l->runs.run; done += ROWS) {
      uint32_t n = l->runs.run - done < ROWS ? l->runs.run - done : ROWS;
      if (f) run_floats(l, rows, done, n, f);
      else good &= run_ints(l, rows, done, n, i);
    }
  } while (al_runs_next(&l->runs));
  return good;
}

static al_status broadcast(al_elementwise *e, al_tensor *out) {
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t k = 0; k < e->count; k++) {
    const al_tensor *t = e->operands[k].tensor;
    if (t && t->rank > rank) rank = t->rank;
  }
  for (uint32_t d = 0; d < rank; d++) sizes[d] = 1;
  for (uint32_t k = 0; k < e->count; k++) {
    const al_tensor *t = e->operands[k].tensor;
    for (uint32_t d = 0; t && d < t->rank; d++) {
      int32_t *size = &sizes[rank - t->rank + d];
      if (*size != 1 && t->sizes[d] != 1 && *size != t->sizes[d]) {
        return al_fail(e->call, AL_SHAPE, e->operands[k].argument);
      }
      if (*size == 1) *size = t->sizes[d];
    }
  }
  return al_resize(e->call, out, rank, sizes);
}

/* torch's rule: not to a lower kind (float, integer, bool). */
static bool can_store(uint8_t from, uint8_t to) {
  return al_computes(to) && (from != AL_F32 || to == AL_F32) && (from == AL_BOOL || to != AL_BOOL);
}

al_status al_compute(al_elementwise *e, uint32_t out_argument, uint32_t rules, al_float_fn *f, al_int_fn *i) {
  al_call *call = e->call;
  al_tensor *out = al_out_of(call, out_argument);
  AL_RETURN_IF_FAILED(call);
  loop l = {.common = NO_TYPE};
  AL_TRY(common_dtype(e, rules, &l.common));
  bool is_float = l.common == AL_F32;
  bool refused = (is_float && !f) || (!is_float && rules & AL_FLOAT_ONLY) || (l.common == AL_BOOL && rules & AL_NO_BOOL);
  if (refused) return al_fail(call, AL_DTYPE, e->operands[0].argument);
  if (!i) l.common = AL_F32;
  is_float = l.common == AL_F32;
  l.result = rules & AL_GIVES_BOOL ? AL_BOOL : l.common;
  if (!can_store(l.result, out->dtype)) return al_fail(call, AL_DTYPE, (int32_t)out_argument);
  AL_TRY(broadcast(e, out));

  row v;
  uint32_t count = 1;
  l.tensors[0] = out;
  for (uint32_t k = 0; k < e->count; k++) {
    const al_operand *o = &e->operands[k];
    if (!o->tensor) AL_TRY(check_number(e, o, l.common));
    if (o->tensor && al_clashes(out, o->tensor)) return al_fail(call, AL_ARGUMENTS, o->argument);
    if (o->tensor && al_numel(o->tensor) != 1) {
      if (count == AL_RUNS_TENSORS) return al_fail(call, AL_ARGUMENTS, o->argument);
      l.slot[count] = (uint8_t)k;
      l.tensors[count++] = o->tensor;
    } else if (is_float) {
      v.f[k] = o->tensor ? al_load_float(o->tensor->data, 0, o->tensor->dtype) :
                o->dtype == AL_I64 ? (float)o->i : (float)o->d;
    } else {
      v.i[k] = o->tensor ? load_int(o->tensor, 0, l.common) : l.common == AL_BOOL ? o->d != 0 : wrap(o->i, l.common);
    }
  }
  if (al_numel(out) == 0) return AL_OK;
  al_runs_begin(&l.runs, count, l.tensors);
  if (run_all(&l, &v, is_float ? f : NULL, i)) return AL_OK;
  return al_fail(call, AL_VALUE, e->operands[e->count - 1].argument);
}

al_status al_unary(al_call *call, uint32_t rules, al_float_fn *f, al_int_fn *i) {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  return al_compute(&e, 1, rules, f, i);
}

al_status al_binary(al_call *call, uint32_t rules, al_float_fn *f, al_int_fn *i) {
  al_elementwise e = {.call = call};
  al_take(&e, 0, AL_PROMOTES);
  al_take(&e, 1, AL_PROMOTES);
  return al_compute(&e, 2, rules, f, i);
}

al_tensor *al_out_of(al_call *call, uint32_t i) {
  if (call->arg_count != i + 2) al_fail_size(call, AL_ARGUMENTS, -1, i + 2, call->arg_count);
  return al_out_arg(call, i);
}

bool al_string_is(al_call *call, uint32_t i, const char *text) {
  const al_value *value = al_arg(call, i);
  size_t size = strlen(text);
  return value && value->type == AL_STRING && value->list.count == size && memcmp(value->list.items, text, size) == 0;
}
