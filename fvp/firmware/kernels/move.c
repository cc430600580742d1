/* The copy engine and the helpers of move.h. */
#include "move.h"

#include <math.h>

#include "simd.h"

void al_view_of(al_view *view, const al_tensor *tensor) {
  view->data = tensor->data;
  view->element = al_dtype_size((al_dtype)tensor->dtype);
  view->rank = tensor->rank;
  for (uint32_t d = 0; d < tensor->rank; d++) view->sizes[d] = tensor->sizes[d];
  al_strides(tensor, view->strides);
}

void al_view_drop(al_view *view, uint32_t dim) {
  view->rank--;
  for (uint32_t d = dim; d < view->rank; d++) {
    view->sizes[d] = view->sizes[d + 1];
    view->strides[d] = view->strides[d + 1];
  }
}

void al_view_insert(al_view *view, uint32_t dim, int32_t size, int32_t stride) {
  for (uint32_t d = view->rank++; d > dim; d--) {
    view->sizes[d] = view->sizes[d - 1];
    view->strides[d] = view->strides[d - 1];
  }
  view->sizes[dim] = size;
  view->strides[dim] = stride;
}

/* A line of elements; steps in bytes. memcpy to a variable makes any alignment right. */
#define COPY_LINE(type)                         \
  for (; count; count--, to += to_step, from += from_step) { \
    type value;                                 \
    memcpy(&value, from, sizeof value);         \
    memcpy(to, &value, sizeof value);           \
  }

static void copy_line(uint8_t *to, ptrdiff_t to_step, const uint8_t *from, ptrdiff_t from_step, uint32_t count,
                      uint32_t element) {
  switch (element) {
    case 1: COPY_LINE(uint8_t) return;
    case 2: COPY_LINE(uint16_t) return;
    case 4: COPY_LINE(uint32_t) return;
    default: COPY_LINE(uint64_t) return;
  }
}

/* Dimensions that matter, from the innermost of `to` outwards; those that lie behind one another in both are one. */
typedef struct plan {
  uint32_t rank;
  int32_t sizes[AL_MAX_RANK];
  int32_t to[AL_MAX_RANK];
  int32_t from[AL_MAX_RANK];
} plan;

static void plan_copy(plan *p, const al_view *to, const al_view *from) {
  p->rank = 0;
  for (uint32_t d = to->rank; d-- > 0;) {
    if (to->sizes[d] == 1) continue;
    uint32_t k = p->rank++;
    for (; k > 0 && p->to[k - 1] > to->strides[d]; k--) {
      p->sizes[k] = p->sizes[k - 1];
      p->to[k] = p->to[k - 1];
      p->from[k] = p->from[k - 1];
    }
    p->sizes[k] = to->sizes[d];
    p->to[k] = to->strides[d];
    p->from[k] = from->strides[d];
  }
  uint32_t last = 0;
  for (uint32_t k = 1; k < p->rank; k++) {
    int64_t size = p->sizes[last];
    if (p->to[k] == size * p->to[last] && p->from[k] == size * p->from[last]) {
      p->sizes[last] *= p->sizes[k];
      continue;
    }
    last++;
    p->sizes[last] = p->sizes[k];
    p->to[last] = p->to[k];
    p->from[last] = p->from[k];
  }
  if (p->rank) p->rank = last + 1;
}

/* The two innermost dimensions. */
static void copy_plane(const plan *p, uint8_t *to, const uint8_t *from, ptrdiff_t element) {
  if (al_copy_plane(to, p->to, from, p->from, p->sizes, (uint32_t)element)) return;
  for (int32_t i = 0; i < p->sizes[1]; i++) {
    copy_line(to + i * p->to[1] * element, p->to[0] * element, from + i * p->from[1] * element, p->from[0] * element,
              (uint32_t)p->sizes[0], (uint32_t)element);
  }
}

void al_copy_strided(const al_view *to, const al_view *from) {
  ptrdiff_t element = (ptrdiff_t)to->element;
  for (uint32_t d = 0; d < to->rank; d++) {
    if (to->sizes[d] == 0) return;
  }
  plan p;
  plan_copy(&p, to, from);
  if (p.rank == 0) {
    memmove(to->data, from->data, (size_t)element);
    return;
  }
  uint32_t line = (uint32_t)p.sizes[0];
  bool is_run = p.to[0] == 1 && p.from[0] == 1;
  if (p.rank == 1) {
    p.rank = 2;
    p.sizes[1] = 1;
    p.to[1] = p.from[1] = 0;
  }
  int32_t at[AL_MAX_RANK] = {0};
  ptrdiff_t to_offset = 0, from_offset = 0;
  for (;;) {
    uint8_t *t = to->data + to_offset * element;
    const uint8_t *f = from->data + from_offset * element;
    if (is_run) memmove(t, f, (size_t)line * (size_t)element);
    else copy_plane(&p, t, f, element);
    uint32_t k = is_run ? 1 : 2;
    for (; k < p.rank; k++) {
      to_offset += p.to[k];
      from_offset += p.from[k];
      if (++at[k] < p.sizes[k]) break;
      to_offset -= (ptrdiff_t)p.sizes[k] * p.to[k];
      from_offset -= (ptrdiff_t)p.sizes[k] * p.from[k];
      at[k] = 0;
    }
    if (k == p.rank) return;
  }
}

void al_fill(void *data, uint32_t count, uint32_t element, const void *value) {
  size_t size = (size_t)count * element;
  if (!size) return;
  memcpy(data, value, element);
  for (size_t done = element; done < size;) {
    size_t more = done < size - done ? done : size - done;
    memcpy((uint8_t *)data + done, data, more);
    done += more;
  }
}

bool al_overlap(const al_tensor *a, const al_tensor *b) {
  uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
  uint32_t first_size = al_nbytes(a), second_size = al_nbytes(b);
  return first_size && second_size && first < second + second_size && second < first + first_size;
}

al_status al_apart(al_call *call, int32_t argument, const al_tensor *a, const al_tensor *out) {
  return al_overlap(a, out) ? al_fail(call, AL_ARGUMENTS, argument) : AL_OK;
}

al_status al_same_dtype(al_call *call, int32_t argument, const al_tensor *a, const al_tensor *out) {
  return a->dtype != out->dtype ? al_fail(call, AL_DTYPE, argument) : AL_OK;
}

al_status al_copy_out(al_call *call, const al_view *from, const al_tensor *source, al_tensor *out) {
  AL_TRY(al_same_dtype(call, 0, source, out));
  AL_TRY(al_resize(call, out, from->rank, from->sizes));
  AL_TRY(al_apart(call, 0, source, out));
  al_view to;
  al_view_of(&to, out);
  al_copy_strided(&to, from);
  return AL_OK;
}

al_status al_start_from(al_call *call, const al_tensor *self, al_tensor *out) {
  if (self->data == out->data && self->dtype == out->dtype && al_same_layout(self, out)) return AL_OK;
  al_view from;
  al_view_of(&from, self);
  return al_copy_out(call, &from, self, out);
}

al_status al_int_list(al_call *call, uint32_t i, int64_t *items, uint32_t *count) {
  uint32_t n = al_list_size(call, i);
  AL_RETURN_IF_FAILED(call);
  if (n > AL_MAX_RANK) return al_fail(call, AL_SHAPE, (int32_t)i);
  for (uint32_t k = 0; k < n; k++) items[k] = al_int_item(call, i, k);
  *count = n;
  return call->status;
}

al_status al_size_list(al_call *call, uint32_t i, int32_t *sizes, uint32_t *count) {
  int64_t items[AL_MAX_RANK];
  AL_TRY(al_int_list(call, i, items, count));
  for (uint32_t k = 0; k < *count; k++) {
    if (items[k] < 0 || items[k] > INT32_MAX) return al_fail(call, AL_SHAPE, (int32_t)i);
    sizes[k] = (int32_t)items[k];
  }
  return AL_OK;
}

al_status al_dim_arg(al_call *call, uint32_t i, uint32_t rank, uint32_t *dim) {
  int32_t wrapped = al_wrap_dim(al_int_arg(call, i), rank);
  AL_RETURN_IF_FAILED(call);
  if (wrapped < 0) return al_fail(call, AL_INDEX, (int32_t)i);
  *dim = (uint32_t)wrapped;
  return AL_OK;
}

al_status al_dim_set(al_call *call, uint32_t i, uint32_t rank, uint32_t *dims) {
  int64_t items[AL_MAX_RANK];
  uint32_t count;
  AL_TRY(al_int_list(call, i, items, &count));
  *dims = 0;
  for (uint32_t k = 0; k < count; k++) {
    int32_t dim = al_wrap_dim(items[k], rank);
    if (dim < 0) return al_fail(call, AL_INDEX, (int32_t)i);
    if (*dims >> dim & 1) return al_fail(call, AL_VALUE, (int32_t)i);
    *dims |= 1u << dim;
  }
  return AL_OK;
}

/* Least and greatest number of an integer dtype. */
static void int_limits(uint8_t dtype, int64_t *low, int64_t *high) {
  uint32_t bits = 8 * al_dtype_size((al_dtype)dtype);
  *high = dtype == AL_U8 ? UINT8_MAX : INT64_MAX >> (64 - bits);
  *low = dtype == AL_U8 ? 0 : -*high - 1;
}

static bool float_overflows(double value, uint8_t dtype) {
  double limit = dtype == AL_F32 ? 0x1.fffffep127 : dtype == AL_F16 ? 65504.0 : 0x1.fep127;
  return dtype != AL_F64 && isfinite(value) && fabs(value) > limit;
}

static bool int_element(al_call *call, uint32_t i, uint8_t dtype, uint8_t *element) {
  int64_t low, high, integer;
  int_limits(dtype, &low, &high);
  if (al_arg(call, i)->type == AL_DOUBLE) {
    double value = al_double_arg(call, i);
    if (!(value >= (double)low && value <= (double)high && value < 0x1p63)) return false;
    integer = (int64_t)value;
  } else {
    integer = al_int_scalar_arg(call, i);
    if (dtype == AL_U8) low = -high; /* torch lets these wrap around */
    if (integer < low || integer > high) return false;
  }
  memcpy(element, &integer, al_dtype_size((al_dtype)dtype)); /* little-endian, as files and Cortex-M are */
  return true;
}

static bool float_element(al_call *call, uint32_t i, uint8_t dtype, uint8_t *element) {
  double value = al_scalar_arg(call, i);
  if (float_overflows(value, dtype)) return false;
  bool is_double = al_arg(call, i)->type == AL_DOUBLE;
  float single = is_double ? (float)value : (float)al_int_scalar_arg(call, i);
  uint16_t half = dtype == AL_F16 ? al_half_bits(single) : al_bfloat_bits(single);
  if (dtype == AL_F64) memcpy(element, &value, sizeof value);
  else if (dtype == AL_F32) memcpy(element, &single, sizeof single);
  else memcpy(element, &half, sizeof half);
  return true;
}

al_status al_scalar_element(al_call *call, uint32_t i, uint8_t dtype, uint8_t element[8]) {
  double value = al_scalar_arg(call, i);
  AL_RETURN_IF_FAILED(call);
  bool fits = true;
  if (dtype == AL_C64) return al_fail(call, AL_DTYPE, -1);
  if (dtype == AL_BOOL) element[0] = value != 0;
  else if (al_is_float(dtype)) fits = float_element(call, i, dtype, element);
  else fits = int_element(call, i, dtype, element);
  return fits ? AL_OK : al_fail(call, AL_VALUE, (int32_t)i);
}

void al_walk_over(al_walk *walk, uint32_t rank, const int32_t *sizes) {
  memset(walk, 0, sizeof *walk);
  walk->rank = rank;
  for (uint32_t d = 0; d < rank; d++) walk->sizes[d] = sizes[d];
}

void al_walk_operand(al_walk *walk, uint32_t o, const al_tensor *tensor) {
  int32_t strides[AL_MAX_RANK];
  al_strides(tensor, strides);
  uint32_t lead = walk->rank - tensor->rank;
  for (uint32_t d = 0; d < tensor->rank; d++) walk->strides[o][lead + d] = tensor->sizes[d] == 1 ? 0 : strides[d];
}

void al_walk_next(al_walk *walk) {
  for (uint32_t d = walk->rank; d-- > 0;) {
    for (uint32_t o = 0; o < 3; o++) walk->offsets[o] += walk->strides[o][d];
    if (++walk->at[d] < walk->sizes[d]) return;
    for (uint32_t o = 0; o < 3; o++) walk->offsets[o] -= walk->sizes[d] * walk->strides[o][d];
    walk->at[d] = 0;
  }
}

static void walk_to(al_walk *walk, const al_tensor *tensor, uint32_t position) {
  al_walk_over(walk, tensor->rank, tensor->sizes);
  al_walk_operand(walk, 0, tensor);
  for (uint32_t d = tensor->rank; d-- > 0;) {
    uint32_t size = (uint32_t)tensor->sizes[d];
    walk->at[d] = (int32_t)(position % size);
    walk->offsets[0] += walk->at[d] * walk->strides[0][d];
    position /= size;
  }
}

void al_copy_flat(const al_tensor *to, uint32_t to_at, const al_tensor *from, uint32_t from_at, uint32_t count) {
  if (!count) return;
  uint32_t element = al_dtype_size((al_dtype)to->dtype);
  if (al_is_contiguous(to) && al_is_contiguous(from)) {
    memmove((uint8_t *)to->data + (size_t)to_at * element, (const uint8_t *)from->data + (size_t)from_at * element,
            (size_t)count * element);
    return;
  }
  al_walk t, f;
  walk_to(&t, to, to_at);
  walk_to(&f, from, from_at);
  for (; count; count--) {
    al_put(to->data, (uint32_t)t.offsets[0], from->data, (uint32_t)f.offsets[0], element);
    al_walk_next(&t);
    al_walk_next(&f);
  }
}

bool al_broadcast(int32_t *sizes, uint32_t *rank, const int32_t *other, uint32_t other_rank) {
  uint32_t lead = other_rank > *rank ? other_rank - *rank : 0;
  for (uint32_t d = *rank; lead && d-- > 0;) sizes[d + lead] = sizes[d];
  for (uint32_t d = 0; d < lead; d++) sizes[d] = 1;
  *rank += lead;
  for (uint32_t d = 0; d < other_rank; d++) {
    int32_t *size = &sizes[*rank - other_rank + d];
    if (*size == 1) *size = other[d];
    else if (other[d] != 1 && other[d] != *size) return false;
  }
  return true;
}

void al_add_element(void *a, uint32_t a_index, const void *b, uint32_t b_index, uint8_t dtype) {
  if (al_is_float(dtype)) {
    al_store_float(a, a_index, dtype, al_load_float(a, a_index, dtype) + al_load_float(b, b_index, dtype));
    return;
  }
  uint64_t sum = (uint64_t)al_load_int(a, a_index, dtype) + (uint64_t)al_load_int(b, b_index, dtype);
  al_store_int(a, a_index, dtype, (int64_t)sum);
}

al_status al_convert_strided(al_call *call, const al_view *to, uint8_t to_dtype, const al_view *from,
                             uint8_t from_dtype) {
  if (to_dtype == from_dtype) {
    al_copy_strided(to, from);
    return AL_OK;
  }
  if (!al_computes(to_dtype) || !al_computes(from_dtype)) return al_fail(call, AL_DTYPE, -1);
  al_walk walk;
  al_walk_over(&walk, to->rank, to->sizes);
  uint32_t numel = 1;
  for (uint32_t d = 0; d < to->rank; d++) {
    numel *= (uint32_t)to->sizes[d];
    walk.strides[0][d] = to->strides[d];
    walk.strides[1][d] = from->strides[d];
  }
  for (; numel; numel--, al_walk_next(&walk)) {
    uint8_t *t = to->data + (ptrdiff_t)walk.offsets[0] * (ptrdiff_t)to->element;
    const uint8_t *f = from->data + (ptrdiff_t)walk.offsets[1] * (ptrdiff_t)from->element;
    if (al_is_float(from_dtype)) {
      float value = al_load_float(f, 0, from_dtype);
      if (to_dtype == AL_BOOL) al_store_int(t, 0, to_dtype, value != 0);
      else al_store_int(t, 0, to_dtype, al_load_int(f, 0, from_dtype));
    } else if (al_is_float(to_dtype)) {
      al_store_float(t, 0, to_dtype, (float)al_load_int(f, 0, from_dtype));
    } else {
      al_store_int(t, 0, to_dtype, al_load_int(f, 0, from_dtype));
    }
  }
  return AL_OK;
}

uint16_t al_half_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7c00u; /* rounds to 65536 or more */
  uint32_t exponent = bits >> 23, drop = 13, mantissa = bits & 0x7fffffu;
  if (exponent < 113) { /* subnormal: the mantissa with its hidden bit, shifted */
    if (exponent < 102) return sign;
    mantissa |= 0x800000u;
    drop = 126 - exponent;
  } else {
    mantissa |= (exponent - 112) << 23;
  }
  uint32_t half = mantissa >> drop, rest = mantissa & ((1u << drop) - 1), middle = 1u << (drop - 1);
  half += rest > middle || (rest == middle && (half & 1));
  return (uint16_t)(sign | half);
}

uint16_t al_bfloat_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float al_half_value(uint16_t half) {
  uint32_t exponent = half >> 10 & 31, mantissa = half & 1023u, bits;
  float value;
  if (exponent == 0) {
    value = (float)mantissa * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
  } else {
    bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
  }
  bits |= (uint32_t)(half & 0x8000u) << 16;
  memcpy(&value, &bits, sizeof value);
  return value;
}
