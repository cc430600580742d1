#include "nn.h"

void al_walk_begin(al_walk *walk, uint32_t rank, const int32_t *sizes, uint32_t dims, uint32_t count,
                   int32_t (*strides)[AL_MAX_RANK]) {
  uint32_t used = 0;
  walk->more = true;
  walk->count = (uint8_t)count;
  for (uint32_t d = 0; d < rank; d++) {
    if (!(dims >> d & 1) || sizes[d] == 1) continue;
    if (sizes[d] == 0) walk->more = false;
    bool joins = used > 0;
    for (uint32_t t = 0; t < count && joins; t++) {
      joins = walk->stride[t][used - 1] == (int64_t)strides[t][d] * sizes[d];
    }
    if (joins) {
      walk->size[used - 1] *= sizes[d];
    } else {
      walk->size[used++] = sizes[d];
    }
    for (uint32_t t = 0; t < count; t++) walk->stride[t][used - 1] = strides[t][d];
  }
  walk->run = 1;
  walk->rank = (uint8_t)used;
  if (used > 0) {
    walk->rank--;
    walk->run = (uint32_t)walk->size[walk->rank];
  }
  for (uint32_t t = 0; t < count; t++) {
    walk->offset[t] = 0;
    walk->step[t] = used > 0 ? walk->stride[t][walk->rank] : 0;
  }
  for (uint32_t d = 0; d < walk->rank; d++) walk->index[d] = 0;
}

void al_walk_next(al_walk *walk) {
  for (uint32_t d = walk->rank; d-- > 0;) {
    bool wraps = ++walk->index[d] == walk->size[d];
    int32_t moves = wraps ? 1 - walk->size[d] : 1;
    for (uint32_t t = 0; t < walk->count; t++) walk->offset[t] += moves * walk->stride[t][d];
    if (!wraps) return;
    walk->index[d] = 0;
  }
  walk->more = false;
}

float al_load_as_float(const void *data, uint32_t index, uint8_t dtype) {
  return al_is_float(dtype) ? al_load_float(data, index, dtype) : (float)al_load_int(data, index, dtype);
}
