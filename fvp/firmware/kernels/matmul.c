/* Matrix products: mm, bmm, addmm, linear, and the mixed ones of a float and an int8 matrix. */
#include "nn.h"
#include "simd.h"

#define COLUMNS 32u /* of the result, kept while the third operand is added: it may be the result's own memory */

/* out[i, j] = beta * c[i, j] + alpha * sum of a[i, k] * b[k, j]; steps in elements. */
typedef struct product {
  uint8_t dtype;
  int32_t rows, columns, depth;
  const void *a, *b, *c; /* c may be NULL */
  void *out;
  int32_t a_row, a_column, b_row, b_column, c_row, c_column, out_row, out_column;
} product;

static const void *at(const void *data, int32_t index, uint8_t dtype) {
  return (const uint8_t *)data + index * (int32_t)al_dtype_size((al_dtype)dtype);
}

static void row_f32(const product *p, int32_t i, float alpha, float beta) {
  const float *a = (const float *)p->a + i * p->a_row;
  float sums[COLUMNS];
  bool across = p->b_column == 1 && !(p->a_column == 1 && p->b_row == 1);
  for (int32_t j = 0; j < p->columns; j += (int32_t)COLUMNS) {
    uint32_t n = (uint32_t)(p->columns - j) < COLUMNS ? (uint32_t)(p->columns - j) : COLUMNS;
    const float *b = (const float *)p->b + j * p->b_column;
    if (across && alpha != 0) {
      al_matmul_run(a, p->a_column, b, p->b_row, sums, (uint32_t)p->depth, n);
    }
    for (int32_t k = 0; k < (int32_t)n; k++) {
      float sum = 0; /* alpha 0: as in torch, the product does not count, not even NaN */
      if (alpha != 0) {
        sum = across ? sums[k]
                     : al_dot_run(a, p->a_column, b + k * p->b_column, p->b_row, (uint32_t)p->depth);
        sum *= alpha;
      }
      if (beta != 0) sum += beta * ((const float *)p->c)[i * p->c_row + (j + k) * p->c_column];
      sums[k] = sum;
    }
    for (int32_t k = 0; k < (int32_t)n; k++) ((float *)p->out)[i * p->out_row + (j + k) * p->out_column] = sums[k];
  }
}

static void row_int(const product *p, int32_t i, int64_t alpha, int64_t beta) {
  for (int32_t j = 0; j < p->columns; j++) {
    uint64_t sum = 0;
    for (int32_t k = 0; k < p->depth; k++) {
      sum += (uint64_t)al_load_int(p->a, (uint32_t)(i * p->a_row + k * p->a_column), p->dtype) *
             (uint64_t)al_load_int(p->b, (uint32_t)(k * p->b_row + j * p->b_column), p->dtype);
    }
    sum *= (uint64_t)alpha;
    if (p->c != NULL) {
      sum += (uint64_t)beta * (uint64_t)al_load_int(p->c, (uint32_t)(i * p->c_row + j * p->c_column), p->dtype);
    }
    al_store_int(p->out, (uint32_t)(i * p->out_row + j * p->out_column), p->dtype, (int64_t)sum);
  }
}

static void multiply(const product *p) {
  if (p->columns == 0) return;
  for (int32_t i = 0; i < p->rows; i++) {
    if (p->dtype == AL_F32) {
      row_f32(p, i, 1, p->c == NULL ? 0.0f : 1.0f);
    } else {
      row_int(p, i, 1, 1);
    }
  }
}

/* All operands have the dtype of the result: float32 or an integer. */
static al_status check_dtypes(al_call *call, const al_tensor *out, const al_tensor *a, const al_tensor *b) {
  AL_NEED(al_computes(a->dtype) && a->dtype != AL_BOOL, AL_DTYPE, 0);
  AL_NEED(b->dtype == a->dtype, AL_DTYPE, 1);
  AL_NEED(out->dtype == a->dtype, AL_DTYPE, -1);
  return AL_OK;
}

/* The last two dimensions. */
static void set_a(product *p, const al_tensor *t) {
  int32_t strides[AL_MAX_RANK];
  al_strides(t, strides);
  p->a = t->data;
  p->rows = t->sizes[t->rank - 2];
  p->depth = t->sizes[t->rank - 1];
  p->a_row = strides[t->rank - 2];
  p->a_column = strides[t->rank - 1];
}

static void set_b(product *p, const al_tensor *t) {
  int32_t strides[AL_MAX_RANK];
  al_strides(t, strides);
  p->b = t->data;
  p->columns = t->sizes[t->rank - 1];
  p->b_row = strides[t->rank - 2];
  p->b_column = strides[t->rank - 1];
}

static void set_out(product *p, const al_tensor *t) {
  int32_t strides[AL_MAX_RANK];
  al_strides(t, strides);
  p->out = t->data;
  p->out_row = strides[t->rank - 2];
  p->out_column = strides[t->rank - 1];
}

/* Checks a @ b -> out for matrices (rank 2). `first` is the number of the argument a. */
static al_status matrices(al_call *call, product *p, uint32_t first, const al_tensor *a, const al_tensor *b,
                          al_tensor *out) {
  AL_TRY(check_dtypes(call, out, a, b));
  AL_NEED(a->rank == 2, AL_SHAPE, (int32_t)first);
  AL_NEED(b->rank == 2 && b->sizes[0] == a->sizes[1], AL_SHAPE, (int32_t)first + 1);
  AL_TRY(al_resize(call, out, 2, (const int32_t[]){a->sizes[0], b->sizes[1]}));
  *p = (product){.dtype = a->dtype};
  set_a(p, a);
  set_b(p, b);
  set_out(p, out);
  return AL_OK;
}

AL_KERNEL(aten_mm_out, "aten::mm.out") {
  const al_tensor *a = al_tensor_arg(call, 0), *b = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  product p;
  AL_TRY(matrices(call, &p, 0, a, b, out));
  multiply(&p);
  return AL_OK;
}

/* torch's rule for a number and an integer type; unsigned types take negative numbers as small. */
static bool fits(int64_t v, uint8_t dtype) {
  uint32_t bits = 8 * al_dtype_size((al_dtype)dtype) - (dtype != AL_U8);
  if (dtype == AL_I64) return true;
  return v < (int64_t)1 << bits && v >= -((int64_t)1 << bits) + (dtype == AL_U8);
}

AL_KERNEL(aten_addmm_out, "aten::addmm.out") {
  const al_tensor *c = al_tensor_arg(call, 0), *a = al_tensor_arg(call, 1), *b = al_tensor_arg(call, 2);
  double beta = al_scalar_arg(call, 3), alpha = al_scalar_arg(call, 4);
  al_tensor *out = al_out_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  product p;
  AL_TRY(matrices(call, &p, 1, a, b, out));
  AL_NEED(c->dtype == a->dtype, AL_DTYPE, 0);
  for (uint32_t i = 3; i < 5; i++) {
    AL_NEED(a->dtype == AL_F32 || fits(al_int_scalar_arg(call, i), a->dtype), AL_VALUE, (int32_t)i);
  }
  AL_NEED(c->rank <= 2, AL_SHAPE, 0);
  int32_t strides[AL_MAX_RANK];
  al_strides(c, strides);
  int32_t steps[2] = {0, 0}; /* of dimensions that are broadcast */
  for (uint32_t d = 0; d < c->rank; d++) {
    uint32_t of_out = 2u - c->rank + d;
    AL_NEED(c->sizes[d] == 1 || c->sizes[d] == out->sizes[of_out], AL_SHAPE, 0);
    if (c->sizes[d] != 1) steps[of_out] = strides[d];
  }
  p.c = c->data;
  p.c_row = steps[0];
  p.c_column = steps[1];
  if (p.columns == 0) return AL_OK;
  for (int32_t i = 0; i < p.rows; i++) {
    if (p.dtype == AL_F32) {
      row_f32(&p, i, (float)alpha, (float)beta);
    } else {
      row_int(&p, i, al_int_scalar_arg(call, 4), al_int_scalar_arg(call, 3));
    }
  }
  return AL_OK;
}

AL_KERNEL(aten_bmm_out, "aten::bmm.out") {
  const al_tensor *a = al_tensor_arg(call, 0), *b = al_tensor_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dtypes(call, out, a, b));
  AL_NEED(a->rank == 3, AL_SHAPE, 0);
  AL_NEED(b->rank == 3 && b->sizes[0] == a->sizes[0] && b->sizes[1] == a->sizes[2], AL_SHAPE, 1);
  AL_TRY(al_resize(call, out, 3, (const int32_t[]){a->sizes[0], a->sizes[1], b->sizes[2]}));
  if (al_numel(out) == 0) return AL_OK;
  product p = {.dtype = a->dtype};
  set_a(&p, a);
  set_b(&p, b);
  set_out(&p, out);
  int32_t a_strides[AL_MAX_RANK], b_strides[AL_MAX_RANK], out_strides[AL_MAX_RANK];
  al_strides(a, a_strides);
  al_strides(b, b_strides);
  al_strides(out, out_strides);
  for (int32_t n = 0; n < a->sizes[0]; n++) {
    p.a = at(a->data, n * a_strides[0], p.dtype);
    p.b = at(b->data, n * b_strides[0], p.dtype);
    p.out = (void *)(uintptr_t)at(out->data, n * out_strides[0], p.dtype);
    multiply(&p);
  }
  return AL_OK;
}

/* Resizes out to the sizes of x with another last one. */
static al_status resize_last(al_call *call, al_tensor *out, const al_tensor *x, int32_t last) {
  int32_t sizes[AL_MAX_RANK];
  for (uint32_t d = 0; d < x->rank; d++) sizes[d] = d + 1 == x->rank ? last : x->sizes[d];
  return al_resize(call, out, x->rank, sizes);
}

AL_KERNEL(aten_linear_out, "aten::linear.out") {
  const al_tensor *x = al_tensor_arg(call, 0), *weight = al_tensor_arg(call, 1);
  const al_tensor *bias = al_optional_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dtypes(call, out, x, weight));
  AL_NEED(x->rank >= 1, AL_SHAPE, 0);
  uint32_t last = x->rank - 1u;
  AL_NEED(weight->rank == 2 && weight->sizes[1] == x->sizes[last], AL_SHAPE, 1);
  if (bias != NULL) {
    AL_NEED(bias->dtype == x->dtype, AL_DTYPE, 2);
    AL_NEED(bias->rank == 1 && bias->sizes[0] == weight->sizes[0], AL_SHAPE, 2);
  }
  AL_TRY(resize_last(call, out, x, weight->sizes[0]));
  int32_t strides[2][AL_MAX_RANK], w[AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  al_strides(weight, w);
  product p = {.dtype = x->dtype, .depth = x->sizes[last], .columns = weight->sizes[0], .b = weight->data,
               .c = bias == NULL ? NULL : bias->data, .a_column = strides[0][last], .b_row = w[1], .b_column = w[0],
               .c_column = 1, .out_column = strides[1][last]};
  al_loop loop; /* each run is a matrix */
  for (al_loop_begin(&loop, last, x->sizes, AL_ALL_DIMS, 2, strides); loop.more; al_loop_next(&loop)) {
    p.rows = (int32_t)loop.run;
    p.a_row = loop.step[0];
    p.out_row = loop.step[1];
    p.a = at(x->data, loop.offset[0], p.dtype);
    p.out = (void *)(uintptr_t)at(out->data, loop.offset[1], p.dtype);
    multiply(&p);
  }
  return AL_OK;
}

/* Products of a float32 matrix and an int8 one whose rows have scales: x[m, k] and w[k, n] with a scale for each k, or
 * w[n, k] (`transposed`) with a scale for each n, or for each n and group of neighbouring k. No zero points. */
static al_status mixed(al_call *call, bool transposed, uint32_t out_arg) {
  const al_tensor *x = al_tensor_arg(call, 0), *w = al_tensor_arg(call, 1), *scales = al_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, out_arg);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(w->dtype == AL_I8, AL_DTYPE, 1);
  AL_NEED(scales->dtype == AL_F32, AL_DTYPE, 2);
  AL_NEED(al_arg_is_null(call, 3), AL_VALUE, 3);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, (int32_t)out_arg);
  AL_NEED(x->rank == 2, AL_SHAPE, 0);
  uint32_t row = transposed ? 1 : 0; /* dimension of w along which is summed */
  AL_NEED(w->rank == 2 && w->sizes[row] == x->sizes[1], AL_SHAPE, 1);
  AL_NEED(scales->rank == 1 || (transposed && scales->rank == 2 && scales->sizes[1] > 0), AL_SHAPE, 2);
  AL_NEED(scales->sizes[0] == w->sizes[0], AL_SHAPE, 2);
  int32_t depth = x->sizes[1], columns = w->sizes[1 - row];
  AL_TRY(al_resize(call, out, 2, (const int32_t[]){x->sizes[0], columns}));
  if (al_numel(out) == 0) return AL_OK;
  int32_t xs[AL_MAX_RANK], ws[AL_MAX_RANK], ss[AL_MAX_RANK], os[AL_MAX_RANK];
  al_strides(x, xs);
  al_strides(w, ws);
  al_strides(scales, ss);
  al_strides(out, os);
  int32_t groups = scales->rank == 2 ? scales->sizes[1] : 1;
  int32_t group = (int32_t)((depth + (int64_t)groups - 1) / groups);
  for (int32_t i = 0; i < x->sizes[0]; i++) {
    for (int32_t j = 0; j < columns; j++) {
      al_sum sum = {0};
      for (int32_t k = 0; k < depth; k++) {
        float scale = ((const float *)scales->data)[transposed ? j * ss[0] + (groups > 1 ? k / group * ss[1] : 0)
                                                               : k * ss[0]];
        float weight = ((const int8_t *)w->data)[k * ws[row] + j * ws[1 - row]];
        al_sum_add(&sum, ((const float *)x->data)[i * xs[0] + k * xs[1]] * (weight * scale));
      }
      ((float *)out->data)[i * os[0] + j * os[1]] = al_sum_value(&sum);
    }
  }
  return AL_OK;
}

AL_KERNEL(quantized_decomposed_mixed_mm_out, "quantized_decomposed::mixed_mm.out") {
  return mixed(call, false, 4);
}

AL_KERNEL(quantized_decomposed_mixed_linear_out, "quantized_decomposed::mixed_linear.out") {
  int64_t dtype = al_int_arg_or(call, 4, AL_F32);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(dtype == AL_F32, AL_DTYPE, 4);
  return mixed(call, true, 5);
}
