/* Moving elements: views of tensors as strided boxes, the copy engine, and what kernels of move, index and creation
 * operators share. Elements are bytes here; their dtype does not matter. */
#ifndef AL_MOVE_H
#define AL_MOVE_H

#include <string.h>

#include "al_kernel.h"

/* A box of elements. Strides are in elements and may be 0 or negative; offsets of all elements fit in memory that the
 * view's author has checked. */
typedef struct al_view {
  uint8_t *data; /* of the element at index 0 in each dimension */
  uint32_t element; /* bytes of one */
  uint32_t rank;
  int32_t sizes[AL_MAX_RANK];
  int32_t strides[AL_MAX_RANK];
} al_view;

/* The whole tensor. */
void al_view_of(al_view *view, const al_tensor *tensor);
void al_view_drop(al_view *view, uint32_t dim);
/* The view must have less than AL_MAX_RANK dimensions. */
void al_view_insert(al_view *view, uint32_t dim, int32_t size, int32_t stride);
/* Makes the view begin at `index` of `dim`. */
static inline void al_view_advance(al_view *view, uint32_t dim, int32_t index) {
  view->data += (ptrdiff_t)index * view->strides[dim] * (ptrdiff_t)view->element;
}

/* Copies all elements of `from` to the places of the same indices in `to`: same rank, sizes and element. The order is
 * free, so that the two may only overlap if both are one and the same run of memory. */
void al_copy_strided(const al_view *to, const al_view *from);

/* `count` times the element. */
void al_fill(void *data, uint32_t count, uint32_t element, const void *value);

bool al_overlap(const al_tensor *a, const al_tensor *b);
/* AL_ARGUMENTS if `out` shares memory with argument `a`, which must not be. */
al_status al_apart(al_call *call, int32_t argument, const al_tensor *a, const al_tensor *out);
/* AL_DTYPE unless both have the same. */
al_status al_same_dtype(al_call *call, int32_t argument, const al_tensor *a, const al_tensor *out);
/* `from`, which is a view of `source`, becomes the result `out`: dtype, resize, memory, copy. */
al_status al_copy_out(al_call *call, const al_view *from, const al_tensor *source, al_tensor *out);
/* `out` becomes a copy of `self`; nothing moves if they are the same memory. */
al_status al_start_from(al_call *call, const al_tensor *self, al_tensor *out);

/* from.dtype to to.dtype, element by element. AL_DTYPE for other changes than between those with al_computes. */
al_status al_convert_strided(al_call *call, const al_view *to, uint8_t to_dtype, const al_view *from,
                             uint8_t from_dtype);

/* Items of an `int[]`; AL_SHAPE if there are more than AL_MAX_RANK. */
al_status al_int_list(al_call *call, uint32_t i, int64_t *items, uint32_t *count);
/* The same as sizes of a tensor: AL_SHAPE if one is negative or too large. */
al_status al_size_list(al_call *call, uint32_t i, int32_t *sizes, uint32_t *count);
/* Argument i as a dimension of a tensor of this rank; AL_INDEX if it has none of this number. */
al_status al_dim_arg(al_call *call, uint32_t i, uint32_t rank, uint32_t *dim);
/* Dimensions of an `int[]` as a set of bits; AL_VALUE if one is named twice. */
al_status al_dim_set(al_call *call, uint32_t i, uint32_t rank, uint32_t *dims);
/* A Scalar as an element of `dtype`, under torch's rules: AL_VALUE if it overflows. */
al_status al_scalar_element(al_call *call, uint32_t i, uint8_t dtype, uint8_t element[8]);

/* An odometer over logical indices, the last dimension fastest, with the offsets (in elements) of three operands. */
typedef struct al_walk {
  uint32_t rank;
  int32_t sizes[AL_MAX_RANK];
  int32_t at[AL_MAX_RANK];
  int32_t strides[3][AL_MAX_RANK];
  int32_t offsets[3];
} al_walk;

/* Strides of all operands are 0 until they are set. */
void al_walk_over(al_walk *walk, uint32_t rank, const int32_t *sizes);
/* Operand o is a tensor whose dimensions are the last ones of the walk and broadcast to it; its sizes are checked by
 * the caller. */
void al_walk_operand(al_walk *walk, uint32_t o, const al_tensor *tensor);
void al_walk_next(al_walk *walk);

/* `count` elements, which are one after the other in both tensors when counted in logical order. */
void al_copy_flat(const al_tensor *to, uint32_t to_at, const al_tensor *from, uint32_t from_at, uint32_t count);

/* Sizes of two operands after broadcasting; false if they do not fit. */
bool al_broadcast(int32_t *sizes, uint32_t *rank, const int32_t *other, uint32_t other_rank);

/* a + b in place of a, integers wrap around, bool is `or`. Only for dtypes with al_computes. */
void al_add_element(void *a, uint32_t a_index, const void *b, uint32_t b_index, uint8_t dtype);

uint16_t al_half_bits(float value); /* float16 and bfloat16, rounded to nearest even */
uint16_t al_bfloat_bits(float value);
float al_half_value(uint16_t bits);

static inline void al_put(void *data, uint32_t to, const void *from_data, uint32_t from, uint32_t element) {
  memmove((uint8_t *)data + (size_t)to * element, (const uint8_t *)from_data + (size_t)from * element, element);
}

#endif
