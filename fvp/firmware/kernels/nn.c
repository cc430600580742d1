#include "nn.h"

void al_loop_begin(al_loop *loop, uint32_t rank, const int32_t *sizes, uint32_t dims, uint32_t count,
                   int32_t (*strides)[AL_MAX_RANK]) {
  uint32_t used = 0;
  loop->more = true;
  loop->count = (uint8_t)count;
  for (uint32_t d = 0; d < rank; d++) {
    if (!(dims >> d & 1) || sizes[d] == 1) continue;
    if (sizes[d] == 0) loop->more = false;
    bool joins = used > 0;
    for (uint32_t t = 0; t < count && joins; t++) {
      joins = loop->stride[t][used - 1] == (int64_t)strides[t][d] * sizes[d];
    }
    if (joins) {
      loop->size[used - 1] *= sizes[d];
    } else {
      loop->size[used++] = sizes[d];
    }
    for (uint32_t t = 0; t < count; t++) loop->stride[t][used - 1] = strides[t][d];
  }
  loop->run = 1;
  loop->rank = (uint8_t)used;
  if (used > 0) {
    loop->rank--;
    loop->run = (uint32_t)loop->size[loop->rank];
  }
  for (uint32_t t = 0; t < count; t++) {
    loop->offset[t] = 0;
    loop->step[t] = used > 0 ? loop->stride[t][loop->rank] : 0;
  }
  for (uint32_t d = 0; d < loop->rank; d++) loop->index[d] = 0;
}

void al_loop_next(al_loop *loop) {
  for (uint32_t d = loop->rank; d-- > 0;) {
    bool wraps = ++loop->index[d] == loop->size[d];
    int32_t moves = wraps ? 1 - loop->size[d] : 1;
    for (uint32_t t = 0; t < loop->count; t++) loop->offset[t] += moves * loop->stride[t][d];
    if (!wraps) return;
    loop->index[d] = 0;
  }
  loop->more = false;
}
