/* What kernels use: arguments, sizes, elements. */
#include "core.h"

al_status al_fail_size(al_call *call, al_status status, int32_t argument, uint32_t needed, uint32_t available) {
  if (call->status) return call->status;
  call->status = status;
  call->error->argument = argument;
  call->error->needed = needed;
  call->error->available = available;
  return status;
}

al_status al_fail(al_call *call, al_status status, int32_t argument) {
  return al_fail_size(call, status, argument, 0, 0);
}

static const al_value *checked(al_call *call, uint32_t i, int64_t index) {
  const al_value *v = &call->values[index];
  if (!(v->type & AL_FREED)) return v;
  al_fail(call, AL_UNBOUND, (int32_t)i);
  return NULL;
}

const al_value *al_arg(al_call *call, uint32_t i) {
  if (i < call->arg_count) return checked(call, i, call->args[i]);
  al_fail_size(call, AL_ARGUMENTS, (int32_t)i, i + 1, call->arg_count);
  return NULL;
}

/* An argument that must have this type. */
static const al_value *typed(al_call *call, uint32_t i, al_type type) {
  const al_value *v = al_arg(call, i);
  if (v && v->type == type) return v;
  if (v) al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return NULL;
}

bool al_arg_is_null(al_call *call, uint32_t i) {
  return i >= call->arg_count || call->values[call->args[i]].type == AL_NULL;
}

static al_tensor *bound(al_call *call, uint32_t i, const al_value *v, bool written) {
  if (!v) return NULL;
  al_status status = v->type != AL_TENSOR ? AL_ARGUMENTS
                   : !v->t->data ? AL_UNBOUND
                   : written && v->t->constant ? AL_CONSTANT : AL_OK;
  if (!status) return v->t;
  al_fail(call, status, (int32_t)i);
  return NULL;
}

const al_tensor *al_tensor_arg(al_call *call, uint32_t i) { return bound(call, i, al_arg(call, i), false); }

const al_tensor *al_optional_tensor_arg(al_call *call, uint32_t i) {
  const al_value *v = al_arg(call, i);
  return v && v->type == AL_NULL ? NULL : bound(call, i, v, false);
}

al_tensor *al_out_arg(al_call *call, uint32_t i) { return bound(call, i, al_arg(call, i), true); }

int64_t al_int_arg(al_call *call, uint32_t i) {
  const al_value *v = typed(call, i, AL_INT);
  return v ? v->i : 0;
}

bool al_bool_arg(al_call *call, uint32_t i) {
  const al_value *v = typed(call, i, AL_BOOLEAN);
  return v ? v->b : false;
}

double al_double_arg(al_call *call, uint32_t i) {
  const al_value *v = typed(call, i, AL_DOUBLE);
  return v ? v->d : 0;
}

double al_scalar_arg(al_call *call, uint32_t i) {
  const al_value *v = al_arg(call, i);
  if (v && v->type == AL_DOUBLE) return v->d;
  return (double)al_int_scalar_arg(call, i);
}

int64_t al_truncate(double x) {
  if (x >= 0x1p63) return INT64_MAX;
  if (x > -0x1p63) return (int64_t)x;
  return x == x ? INT64_MIN : 0;
}

int64_t al_int_scalar_arg(al_call *call, uint32_t i) {
  const al_value *v = al_arg(call, i);
  if (!v) return 0;
  if (v->type == AL_INT) return v->i;
  if (v->type == AL_BOOLEAN) return v->b;
  if (v->type == AL_DOUBLE) return al_truncate(v->d);
  al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return 0;
}

int64_t al_int_arg_or(al_call *call, uint32_t i, int64_t otherwise) {
  return al_arg_is_null(call, i) ? otherwise : al_int_arg(call, i);
}

static bool is_list(uint8_t type) { return type >= AL_INT_LIST && type <= AL_OPTIONAL_TENSOR_LIST; }

uint32_t al_list_size(al_call *call, uint32_t i) {
  if (al_arg_is_null(call, i)) return 0;
  const al_value *v = al_arg(call, i);
  if (v && is_list(v->type)) return v->list.count;
  if (v) al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return 0;
}

/* Address of item k of a list of this type. */
static const uint8_t *item(al_call *call, uint32_t i, uint32_t k, al_type type, uint32_t width) {
  const al_value *v = typed(call, i, type);
  if (v && k < v->list.count) return (const uint8_t *)v->list.items + (size_t)width * k;
  if (v) al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return NULL;
}

int64_t al_int_item(al_call *call, uint32_t i, uint32_t k) {
  const uint8_t *at = item(call, i, k, AL_INT_LIST, 8);
  const al_value *v = at ? checked(call, i, (int64_t)fb_load64(at)) : NULL;
  if (v && v->type == AL_INT) return v->i;
  if (v) al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return 0;
}

double al_double_item(al_call *call, uint32_t i, uint32_t k) {
  const uint8_t *at = item(call, i, k, AL_DOUBLE_LIST, 8);
  double value = 0;
  if (at) memcpy(&value, at, sizeof value);
  return value;
}

bool al_bool_item(al_call *call, uint32_t i, uint32_t k) {
  const uint8_t *at = item(call, i, k, AL_BOOL_LIST, 1);
  return at && *at;
}

static al_tensor *tensor_item(al_call *call, uint32_t i, uint32_t k, bool written) {
  const al_value *v = al_arg(call, i);
  if (!v) return NULL;
  const uint8_t *at = item(call, i, k, v->type == AL_OPTIONAL_TENSOR_LIST ? v->type : AL_TENSOR_LIST, 4);
  if (!at) return NULL;
  int32_t index = (int32_t)fb_load32(at);
  if (index >= 0) return bound(call, i, checked(call, i, index), written);
  if (written) al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return NULL;
}

const al_tensor *al_tensor_item(al_call *call, uint32_t i, uint32_t k) { return tensor_item(call, i, k, false); }

al_tensor *al_out_item(al_call *call, uint32_t i, uint32_t k) { return tensor_item(call, i, k, true); }

/* The slot of a symbolic result: it must hold a number, so that no tensor of the file disappears. */
static al_value *result(al_call *call, uint32_t i) {
  const al_value *v = al_arg(call, i);
  if (v && v->type <= AL_DOUBLE) return &call->values[call->args[i]];
  al_fail(call, AL_ARGUMENTS, (int32_t)i);
  return NULL;
}

al_status al_set_int(al_call *call, uint32_t i, int64_t value) {
  al_value *v = result(call, i);
  if (v) *v = (al_value){.i = value, .type = AL_INT};
  return call->status;
}

al_status al_set_bool(al_call *call, uint32_t i, bool value) {
  al_value *v = result(call, i);
  if (v) *v = (al_value){.b = value, .type = AL_BOOLEAN};
  return call->status;
}

al_status al_set_double(al_call *call, uint32_t i, double value) {
  al_value *v = result(call, i);
  if (v) *v = (al_value){.d = value, .type = AL_DOUBLE};
  return call->status;
}

al_status al_resize(al_call *call, al_tensor *out, uint32_t rank, const int32_t *sizes) {
  if (rank != out->rank) return al_fail_size(call, AL_RESIZE, -1, rank, out->rank);
  uint32_t bytes = al_dtype_size((al_dtype)out->dtype);
  for (uint32_t i = 0; i < rank; i++) {
    if (sizes[i] < 0 || (out->dynamic ? sizes[i] > out->bounds[i] : sizes[i] != out->sizes[i]))
      return al_fail_size(call, AL_RESIZE, -1, (uint32_t)sizes[i], (uint32_t)out->bounds[i]);
    bytes *= (uint32_t)sizes[i];
  }
  /* The memory may be that of a smaller tensor, of which `out` is a view. */
  if (bytes > out->capacity) return al_fail_size(call, AL_RESIZE, -1, bytes, out->capacity);
  if (out->dynamic) memmove(out->sizes, sizes, rank * sizeof *sizes);
  return AL_OK;
}

al_status al_resize_like(al_call *call, al_tensor *out, const al_tensor *like) {
  return al_resize(call, out, like->rank, like->sizes);
}

int32_t al_wrap_dim(int64_t dim, uint32_t rank) {
  int64_t count = rank ? rank : 1;
  if (dim < 0) dim += count;
  return dim >= 0 && dim < count ? (int32_t)dim : -1;
}

void al_strides(const al_tensor *tensor, int32_t *strides) {
  int32_t step = 1;
  for (uint32_t i = tensor->rank; i-- > 0;) {
    strides[tensor->dim_order[i]] = step;
    step *= tensor->sizes[tensor->dim_order[i]];
  }
}

/* Next dimension in memory whose place can be told (its size is not 1), from position *i on; rank if there is none. */
static uint32_t next_dim(const al_tensor *t, uint32_t *i) {
  while (*i < t->rank) {
    uint32_t dim = t->dim_order[(*i)++];
    if (t->sizes[dim] != 1) return dim;
  }
  return t->rank;
}

bool al_is_contiguous(const al_tensor *tensor) {
  uint32_t i = 0, last = 0, dim;
  while ((dim = next_dim(tensor, &i)) < tensor->rank) {
    if (dim < last) return al_numel(tensor) == 0;
    last = dim;
  }
  return true;
}

bool al_same_sizes(const al_tensor *a, const al_tensor *b) {
  return a->rank == b->rank && !memcmp(a->sizes, b->sizes, a->rank * sizeof *a->sizes);
}

bool al_same_layout(const al_tensor *a, const al_tensor *b) {
  if (!al_same_sizes(a, b)) return false;
  uint32_t i = 0, k = 0, dim;
  do {
    dim = next_dim(a, &i);
    if (dim != next_dim(b, &k)) return false;
  } while (dim < a->rank);
  return true;
}

uint32_t al_dtype_size(al_dtype dtype) {
  switch (dtype) {
    case AL_U8:
    case AL_I8:
    case AL_BOOL: return 1;
    case AL_I16:
    case AL_F16:
    case AL_BF16: return 2;
    case AL_I32:
    case AL_F32: return 4;
    case AL_I64:
    case AL_F64:
    case AL_C64: return 8;
  }
  return 0;
}

uint32_t al_numel(const al_tensor *tensor) {
  uint32_t count = 1;
  for (uint32_t i = 0; i < tensor->rank; i++) count *= (uint32_t)tensor->sizes[i];
  return count;
}

uint32_t al_nbytes(const al_tensor *tensor) { return al_numel(tensor) * al_dtype_size((al_dtype)tensor->dtype); }

bool al_computes(uint8_t dtype) { return dtype <= AL_I64 || dtype == AL_F32 || dtype == AL_BOOL; }

int64_t al_load_int(const void *data, uint32_t index, uint8_t dtype) {
  switch (dtype) {
    case AL_U8: return ((const uint8_t *)data)[index];
    case AL_BOOL: return ((const uint8_t *)data)[index] != 0;
    case AL_I8: return ((const int8_t *)data)[index];
    case AL_I16: return ((const int16_t *)data)[index];
    case AL_I32: return ((const int32_t *)data)[index];
    case AL_I64: return ((const int64_t *)data)[index];
    case AL_F32: return al_truncate((double)((const float *)data)[index]);
    default: return 0;
  }
}

float al_load_float(const void *data, uint32_t index, uint8_t dtype) {
  return dtype == AL_F32 ? ((const float *)data)[index] : (float)al_load_int(data, index, dtype);
}

void al_store_int(void *data, uint32_t index, uint8_t dtype, int64_t value) {
  switch (dtype) {
    case AL_U8: ((uint8_t *)data)[index] = (uint8_t)value; break;
    case AL_BOOL: ((uint8_t *)data)[index] = value != 0; break;
    case AL_I8: ((int8_t *)data)[index] = (int8_t)value; break;
    case AL_I16: ((int16_t *)data)[index] = (int16_t)value; break;
    case AL_I32: ((int32_t *)data)[index] = (int32_t)value; break;
    case AL_I64: ((int64_t *)data)[index] = value; break;
    case AL_F32: ((float *)data)[index] = (float)value; break;
    default: break;
  }
}

void al_store_float(void *data, uint32_t index, uint8_t dtype, float value) {
  if (dtype == AL_F32) ((float *)data)[index] = value;
  else al_store_int(data, index, dtype, dtype == AL_BOOL ? value != 0 : al_truncate((double)value));
}
