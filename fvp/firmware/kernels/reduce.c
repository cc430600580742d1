/* Reductions over some or all dimensions, and cumsum.
 *
 * Sums and means of floats carry their rounding errors along; sums of integers wrap around in the type of the result.
 * NaN wins in max and min, the first one has the index. */
#include "nn.h"

#define EVERY ((1u << AL_MAX_RANK) - 1)

/* One number of the result: the elements are those of tensor 0 of the loop, moved by `from`. */
typedef struct item {
  const al_tensor *x;
  al_tensor *out, *second; /* second may be NULL */
  int32_t from, to, to_second;
  float correction; /* of var */
} item;

/* Leaves the loop ready to begin again if it had elements. */
typedef void reduce_fn(al_loop *loop, const item *t);

#define EACH(loop, t, i)                                                       \
  for (; (loop)->more; al_loop_next(loop))                                     \
    for (int32_t i = (t)->from + (loop)->offset[0], left_ = (int32_t)(loop)->run; left_ > 0; \
         left_--, i += (loop)->step[0])

static float float_at(const item *t, int32_t i) { return al_load_float(t->x->data, (uint32_t)i, t->x->dtype); }
static int64_t int_at(const item *t, int32_t i) { return al_load_int(t->x->data, (uint32_t)i, t->x->dtype); }
static void give_float(const item *t, float v) { al_store_float(t->out->data, (uint32_t)t->to, t->out->dtype, v); }
static void give_int(const item *t, int64_t v) { al_store_int(t->out->data, (uint32_t)t->to, t->out->dtype, v); }

static void sum_floats(al_loop *loop, const item *t) {
  al_sum sum = {0};
  EACH(loop, t, i) al_sum_add(&sum, float_at(t, i));
  give_float(t, al_sum_value(&sum));
}

static void sum_ints(al_loop *loop, const item *t) {
  uint64_t sum = 0;
  EACH(loop, t, i) sum += (uint64_t)int_at(t, i);
  give_int(t, (int64_t)sum);
}

static void mean_floats(al_loop *loop, const item *t) {
  al_sum sum = {0};
  uint32_t n = 0;
  EACH(loop, t, i) {
    al_sum_add(&sum, float_at(t, i));
    n++;
  }
  give_float(t, al_sum_value(&sum) / (float)n);
}

static void multiply_floats(al_loop *loop, const item *t) {
  float product = 1;
  EACH(loop, t, i) product *= float_at(t, i);
  give_float(t, product);
}

static void multiply_ints(al_loop *loop, const item *t) {
  uint64_t product = 1;
  EACH(loop, t, i) product *= (uint64_t)int_at(t, i);
  give_int(t, (int64_t)product);
}

static void any(al_loop *loop, const item *t) {
  bool found = false;
  if (t->x->dtype == AL_F32) {
    EACH(loop, t, i) found |= float_at(t, i) != 0;
  } else {
    EACH(loop, t, i) found |= int_at(t, i) != 0;
  }
  give_int(t, found);
}

/* Index of the first greatest or least element, and how many are before it. */
static int32_t best(al_loop *loop, const item *t, bool greatest, int64_t *order) {
  int32_t at = -1;
  int64_t n = 0;
  if (t->x->dtype == AL_F32) {
    float top = 0;
    EACH(loop, t, i) {
      float v = float_at(t, i);
      bool better = (greatest ? v > top : v < top) || (v != v && top == top);
      if (at < 0 || better) {
        top = v;
        at = i;
        *order = n;
      }
      n++;
    }
    return at;
  }
  int64_t top = 0;
  EACH(loop, t, i) {
    int64_t v = int_at(t, i);
    if (at < 0 || (greatest ? v > top : v < top)) {
      top = v;
      at = i;
      *order = n;
    }
    n++;
  }
  return at;
}

/* The element itself to out, its number to second. */
static void give_best(al_loop *loop, const item *t, bool greatest) {
  int64_t order = 0;
  int32_t at = best(loop, t, greatest, &order);
  if (t->x->dtype == AL_F32) {
    give_float(t, float_at(t, at));
  } else {
    give_int(t, int_at(t, at));
  }
  if (t->second != NULL) ((int64_t *)t->second->data)[t->to_second] = order;
}

static void greatest(al_loop *loop, const item *t) { give_best(loop, t, true); }
static void least(al_loop *loop, const item *t) { give_best(loop, t, false); }

static void number_of_greatest(al_loop *loop, const item *t) {
  int64_t order = 0;
  best(loop, t, true, &order);
  give_int(t, order);
}

static void number_of_least(al_loop *loop, const item *t) {
  int64_t order = 0;
  best(loop, t, false, &order);
  give_int(t, order);
}

/* Variance to out, mean to second. */
static void variance(al_loop *loop, const item *t) {
  bool filled = loop->more;
  al_sum sum = {0}, square = {0}, rest = {0};
  float n = 0;
  EACH(loop, t, i) al_sum_add(&sum, float_at(t, i));
  loop->more = filled;
  for (; loop->more; al_loop_next(loop)) n += (float)loop->run;
  loop->more = filled;
  float mean = al_sum_value(&sum) / n;
  EACH(loop, t, i) {
    float d = float_at(t, i) - mean;
    al_sum_add(&square, d * d);
    al_sum_add(&rest, d);
  }
  float divisor = n - t->correction;
  give_float(t, al_sum_of_squares(&square, &rest, n) / (divisor > 0 ? divisor : 0));
  if (t->second != NULL) ((float *)t->second->data)[t->to_second] = mean;
}

AL_APART static void begin(al_loop *loop, const al_tensor *x, const al_tensor *out, const al_tensor *second,
                           uint32_t dims, bool keep) {
  int32_t strides[3][AL_MAX_RANK] = {{0}};
  al_strides(x, strides[0]);
  for (uint32_t t = 1; t < 3; t++) { /* strides of out, put at x's dimensions */
    const al_tensor *o = t == 1 ? out : second;
    int32_t own[AL_MAX_RANK] = {0};
    if (o == NULL) continue;
    al_strides(o, own);
    for (uint32_t d = 0, k = 0; d < x->rank; d++) {
      if (!keep && dims >> d & 1) continue;
      strides[t][d] = own[k++];
    }
  }
  al_loop_begin(loop, x->rank, x->sizes, ~dims, 3, strides);
}

AL_APART static void begin_inner(al_loop *loop, const al_tensor *x, uint32_t dims) {
  int32_t strides[1][AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_loop_begin(loop, x->rank, x->sizes, dims, 1, strides);
}

AL_APART static al_status resize(al_call *call, const al_tensor *x, al_tensor *out, uint32_t dims, bool keep) {
  int32_t sizes[AL_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t d = 0; d < x->rank; d++) {
    if (!(dims >> d & 1)) {
      sizes[rank++] = x->sizes[d];
    } else if (keep) {
      sizes[rank++] = 1;
    }
  }
  return al_resize(call, out, rank, sizes);
}

/* Reduces the dimensions in `dims`. `needs_elements`: there is no result of none. */
static al_status reduce(al_call *call, item t, uint32_t dims, bool keep, bool needs_elements, reduce_fn *f) {
  AL_TRY(resize(call, t.x, t.out, dims, keep));
  if (t.second != NULL) AL_TRY(resize(call, t.x, t.second, dims, keep));
  al_loop outer, inner;
  begin(&outer, t.x, t.out, t.second, dims, keep);
  begin_inner(&inner, t.x, dims);
  bool filled = inner.more;
  AL_NEED(filled || !needs_elements, AL_SHAPE, 0);
  for (; outer.more; al_loop_next(&outer)) {
    for (int32_t k = 0; k < (int32_t)outer.run; k++) {
      t.from = outer.offset[0] + k * outer.step[0];
      t.to = outer.offset[1] + k * outer.step[1];
      t.to_second = outer.offset[2] + k * outer.step[2];
      inner.more = filled;
      f(&inner, &t);
    }
  }
  return AL_OK;
}

/* A list of dimensions, as bits. `none`: what an empty list means; None is all of them. */
static uint32_t dims_arg(al_call *call, uint32_t argument, const al_tensor *x, uint32_t none) {
  if (al_arg_is_null(call, argument)) return EVERY;
  uint32_t count = al_list_size(call, argument), dims = 0;
  for (uint32_t k = 0; k < count; k++) {
    int32_t d = al_wrap_dim(al_int_item(call, argument, k), x->rank);
    if (d < 0 || dims >> d & 1) {
      al_fail(call, d < 0 ? AL_INDEX : AL_VALUE, (int32_t)argument);
      return 0;
    }
    dims |= 1u << d;
  }
  return count == 0 ? none : dims;
}

static uint32_t dim_arg(al_call *call, uint32_t argument, const al_tensor *x) {
  int32_t d = al_wrap_dim(al_int_arg(call, argument), x->rank);
  if (d < 0) {
    al_fail(call, AL_INDEX, (int32_t)argument);
    return 0;
  }
  return 1u << d;
}

/* The dtype argument, if given, must be that of the result. No sums and products as bool. */
static al_status check_dtypes(al_call *call, const al_tensor *x, const al_tensor *out, uint32_t dtype_arg) {
  AL_NEED(al_computes(x->dtype), AL_DTYPE, 0);
  AL_NEED(al_computes(out->dtype) && out->dtype != AL_BOOL, AL_DTYPE, -1);
  AL_NEED(al_int_arg_or(call, dtype_arg, out->dtype) == out->dtype, AL_DTYPE, (int32_t)dtype_arg);
  return AL_OK;
}

AL_KERNEL(aten_sum_IntList_out, "aten::sum.IntList_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dtypes(call, t.x, t.out, 3));
  return reduce(call, t, dims, keep, false, t.out->dtype == AL_F32 ? sum_floats : sum_ints);
}

static al_status mean(al_call *call, item t, uint32_t dims, bool keep, uint32_t dtype_arg) {
  AL_TRY(check_dtypes(call, t.x, t.out, dtype_arg));
  AL_NEED(t.x->dtype == AL_F32 || !al_arg_is_null(call, dtype_arg), AL_DTYPE, 0);
  AL_NEED(t.out->dtype == AL_F32, AL_DTYPE, -1);
  return reduce(call, t, dims, keep, false, mean_floats);
}

AL_KERNEL(aten_mean_out, "aten::mean.out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  return mean(call, t, dims, keep, 3);
}

AL_KERNEL(aten_mean_dtype_out, "aten::mean.dtype_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 2)};
  AL_RETURN_IF_FAILED(call);
  return mean(call, t, EVERY, false, 1);
}

AL_KERNEL(aten_prod_out, "aten::prod.out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 2)};
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dtypes(call, t.x, t.out, 1));
  return reduce(call, t, EVERY, false, false, t.out->dtype == AL_F32 ? multiply_floats : multiply_ints);
}

AL_KERNEL(aten_prod_int_out, "aten::prod.int_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dim_arg(call, 1, t.x);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_dtypes(call, t.x, t.out, 3));
  return reduce(call, t, dims, keep, false, t.out->dtype == AL_F32 ? multiply_floats : multiply_ints);
}

/* amax and amin: the result has the dtype of the tensor. */
static al_status extreme(al_call *call, reduce_fn *f) {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 3)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(al_computes(t.x->dtype), AL_DTYPE, 0);
  AL_NEED(t.out->dtype == t.x->dtype, AL_DTYPE, 3);
  return reduce(call, t, dims, keep, true, f);
}

AL_KERNEL(aten_amax_out, "aten::amax.out") { return extreme(call, greatest); }

AL_KERNEL(aten_amin_out, "aten::amin.out") { return extreme(call, least); }

static al_status extreme_of_all(al_call *call, reduce_fn *f) {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 1)};
  AL_RETURN_IF_FAILED(call);
  AL_NEED(al_computes(t.x->dtype), AL_DTYPE, 0);
  AL_NEED(t.out->dtype == t.x->dtype, AL_DTYPE, 1);
  return reduce(call, t, EVERY, false, true, f);
}

AL_KERNEL(aten_max_unary_out, "aten::max.unary_out") { return extreme_of_all(call, greatest); }

AL_KERNEL(aten_min_unary_out, "aten::min.unary_out") { return extreme_of_all(call, least); }

static al_status extreme_of_dim(al_call *call, reduce_fn *f) {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 3), .second = al_out_arg(call, 4)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dim_arg(call, 1, t.x);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(al_computes(t.x->dtype), AL_DTYPE, 0);
  AL_NEED(t.out->dtype == t.x->dtype, AL_DTYPE, 3);
  AL_NEED(t.second->dtype == AL_I64, AL_DTYPE, 4);
  return reduce(call, t, dims, keep, true, f);
}

AL_KERNEL(aten_max_dim_max, "aten::max.dim_max") { return extreme_of_dim(call, greatest); }

AL_KERNEL(aten_min_dim_min, "aten::min.dim_min") { return extreme_of_dim(call, least); }

static al_status number_of_extreme(al_call *call, reduce_fn *f) {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 3)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = al_arg_is_null(call, 1) ? EVERY : dim_arg(call, 1, t.x);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(al_computes(t.x->dtype) && t.x->dtype != AL_BOOL, AL_DTYPE, 0);
  AL_NEED(t.out->dtype == AL_I64, AL_DTYPE, 3);
  return reduce(call, t, dims, keep, true, f);
}

AL_KERNEL(aten_argmax_out, "aten::argmax.out") { return number_of_extreme(call, number_of_greatest); }

AL_KERNEL(aten_argmin_out, "aten::argmin.out") { return number_of_extreme(call, number_of_least); }

static al_status any_of(al_call *call, item t, uint32_t dims, bool keep) {
  AL_NEED(al_computes(t.x->dtype), AL_DTYPE, 0);
  AL_NEED(t.out->dtype == AL_BOOL || t.out->dtype == AL_U8, AL_DTYPE, -1);
  return reduce(call, t, dims, keep, false, any);
}

AL_KERNEL(aten_any_all_out, "aten::any.all_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 1)};
  AL_RETURN_IF_FAILED(call);
  return any_of(call, t, EVERY, false);
}

/* An empty list reduces nothing here, unlike in the other reductions. */
AL_KERNEL(aten_any_dims_out, "aten::any.dims_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 3)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, 0);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  return any_of(call, t, dims, keep);
}

AL_KERNEL(aten_any_out, "aten::any.out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 3)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dim_arg(call, 1, t.x);
  bool keep = al_bool_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  return any_of(call, t, dims, keep);
}

static al_status var(al_call *call, item t, uint32_t dims, bool keep) {
  AL_NEED(t.x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(t.out->dtype == AL_F32, AL_DTYPE, -1);
  AL_NEED(t.second == NULL || t.second->dtype == AL_F32, AL_DTYPE, -1);
  return reduce(call, t, dims, keep, false, variance);
}

static float correction_arg(al_call *call, uint32_t argument) {
  return al_arg_is_null(call, argument) ? 1.0f : (float)al_scalar_arg(call, argument);
}

AL_KERNEL(aten_var_out, "aten::var.out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4), .correction = al_bool_arg(call, 2)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  return var(call, t, dims, keep);
}

AL_KERNEL(aten_var_correction_out, "aten::var.correction_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4), .correction = correction_arg(call, 2)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  return var(call, t, dims, keep);
}

AL_KERNEL(aten_var_mean_correction_out, "aten::var_mean.correction_out") {
  item t = {.x = al_tensor_arg(call, 0), .out = al_out_arg(call, 4), .second = al_out_arg(call, 5),
            .correction = correction_arg(call, 2)};
  AL_RETURN_IF_FAILED(call);
  uint32_t dims = dims_arg(call, 1, t.x, EVERY);
  bool keep = al_bool_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  return var(call, t, dims, keep);
}

AL_KERNEL(aten_cumsum_out, "aten::cumsum.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  int32_t axis = al_wrap_dim(al_int_arg(call, 1), x->rank);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(axis >= 0, AL_INDEX, 1);
  AL_TRY(check_dtypes(call, x, out, 2));
  AL_TRY(al_resize_like(call, out, x));
  if (al_numel(x) == 0) return AL_OK;
  int32_t strides[2][AL_MAX_RANK] = {{0}};
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  int32_t n = x->rank > 0 ? x->sizes[axis] : 1;
  al_loop loop;
  for (al_loop_begin(&loop, x->rank, x->sizes, ~(1u << axis), 2, strides); loop.more; al_loop_next(&loop)) {
    for (int32_t k = 0; k < (int32_t)loop.run; k++) {
      al_sum sum = {0};
      uint64_t total = 0;
      int32_t from = loop.offset[0] + k * loop.step[0], to = loop.offset[1] + k * loop.step[1];
      for (int32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)(from + i * strides[0][axis]), there = (uint32_t)(to + i * strides[1][axis]);
        if (out->dtype == AL_F32) {
          al_sum_add(&sum, al_load_float(x->data, at, x->dtype));
          al_store_float(out->data, there, out->dtype, al_sum_value(&sum));
        } else {
          total += (uint64_t)al_load_int(x->data, at, x->dtype);
          al_store_int(out->data, there, out->dtype, (int64_t)total);
        }
      }
    }
  }
  return AL_OK;
}
