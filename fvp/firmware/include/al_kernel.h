/* For authors of kernels and backends. A kernel is one function:
 *
 *     AL_KERNEL(aten_relu_out, "aten::relu.out") {
 *       const al_tensor *x = al_tensor_arg(call, 0);
 *       al_tensor *out = al_out_arg(call, 1);
 *       AL_RETURN_IF_FAILED(call);                      // after all arguments, before any use
 *       AL_TRY(al_resize_like(call, out, x));
 *       ...
 *       return AL_OK;
 *     }
 *
 * Arguments stand in the order of the out-variant's schema, keyword-only ones included, then the out tensors, then
 * the return value (the out again; a tensor list of the outs if there are several): the kernel ignores the last.
 * The function's name is the operator's with "::" and "." as "_"; the build finds kernels by these lines.
 *
 * The file is not trusted: arguments may have any type, rank (to 16), size, dtype and dim_order, and tensors may
 * overlap in any way (use memmove). Check, then compute. Results are PyTorch's (eager, CPU): dtype promotion,
 * integer wrap-around, division and rounding rules, NaN propagation.
 */
#ifndef AL_KERNEL_H
#define AL_KERNEL_H

#include "arm_lower.h"

struct al_call {
  const int32_t *args;      /* value indices, checked */
  uint32_t arg_count;
  al_value *values;         /* of the method */
  uint32_t value_count;
  al_status status;         /* first failure of an accessor */
  al_error *error;
  al_block scratch, fast_scratch;
};

#define AL_KERNEL(symbol, name) \
  al_status al_##symbol(al_call *call); \
  al_status al_##symbol(al_call *call)

#define AL_RETURN_IF_FAILED(call) \
  do { if ((call)->status) return (call)->status; } while (0)
#define AL_TRY(expression) \
  do { al_status al_try_ = (expression); if (al_try_) return al_try_; } while (0)

/* Accessors record the first failure in call->status and then give NULL or 0. */
const al_value *al_arg(al_call *call, uint32_t i);
bool al_arg_is_null(al_call *call, uint32_t i);            /* also if there is no such argument */
const al_tensor *al_tensor_arg(al_call *call, uint32_t i); /* has memory */
const al_tensor *al_optional_tensor_arg(al_call *call, uint32_t i); /* NULL for None: not a failure */
al_tensor *al_out_arg(al_call *call, uint32_t i);          /* has memory and is no constant */
int64_t al_int_arg(al_call *call, uint32_t i);
bool al_bool_arg(al_call *call, uint32_t i);
double al_double_arg(al_call *call, uint32_t i);           /* a Double, exactly */
double al_scalar_arg(al_call *call, uint32_t i);           /* Scalar: Int, Double or Bool */
int64_t al_int_scalar_arg(al_call *call, uint32_t i);      /* Scalar as an integer (a Double is truncated) */
int64_t al_int_arg_or(al_call *call, uint32_t i, int64_t otherwise); /* `int?` */

/* Lists. A length of 0 for None. */
uint32_t al_list_size(al_call *call, uint32_t i);
int64_t al_int_item(al_call *call, uint32_t i, uint32_t k);
double al_double_item(al_call *call, uint32_t i, uint32_t k);
bool al_bool_item(al_call *call, uint32_t i, uint32_t k);
const al_tensor *al_tensor_item(al_call *call, uint32_t i, uint32_t k);          /* NULL for None: not a failure */
al_tensor *al_out_item(al_call *call, uint32_t i, uint32_t k);

/* Records and returns a failure. `argument` -1 if it is about none in particular. */
al_status al_fail(al_call *call, al_status status, int32_t argument);
al_status al_fail_size(al_call *call, al_status status, int32_t argument, uint32_t needed, uint32_t available);

/* Gives `out` these sizes: static tensors must have them already, dynamic ones may have them within their bounds. */
al_status al_resize(al_call *call, al_tensor *out, uint32_t rank, const int32_t *sizes);
al_status al_resize_like(al_call *call, al_tensor *out, const al_tensor *like);

/* -1 for a dim out of range; torch's rule: a tensor of rank 0 counts as rank 1. */
int32_t al_wrap_dim(int64_t dim, uint32_t rank);
/* Steps in elements for each logical dimension. */
void al_strides(const al_tensor *tensor, int32_t *strides);
bool al_is_contiguous(const al_tensor *tensor);       /* dim_order is 0, 1, 2, ... (or cannot be told from it) */
bool al_same_sizes(const al_tensor *a, const al_tensor *b);
bool al_same_layout(const al_tensor *a, const al_tensor *b); /* same sizes and same order in memory */

/* One element by dtype. Integers and bool to int64 and back (wraps around; bool: != 0); float32 to float. Conversion
 * float -> integer truncates towards zero and saturates at the ends of int64 first, NaN gives 0. */
static inline bool al_is_float(uint8_t dtype) {
  return dtype == AL_F32 || dtype == AL_F64 || dtype == AL_F16 || dtype == AL_BF16;
}
int64_t al_load_int(const void *data, uint32_t index, uint8_t dtype);
float al_load_float(const void *data, uint32_t index, uint8_t dtype);
void al_store_int(void *data, uint32_t index, uint8_t dtype, int64_t value);
void al_store_float(void *data, uint32_t index, uint8_t dtype, float value);
/* dtypes that kernels compute with: u8 i8 i16 i32 i64 f32 bool. f64, f16, bf16, c64 can only be copied. */
bool al_computes(uint8_t dtype);
/* Truncated towards zero; the ends of int64 for what is beyond them, 0 for NaN. (A cast of these is undefined.) */
int64_t al_truncate(double x);

#endif
