/* _cdist_forward and _pdist_forward: p-norms of differences of float32 rows. */
#include "nn.h"

static float distance(const float *a, int32_t a_step, const float *b, int32_t b_step, int32_t n, float p) {
  al_sum sum = {0};
  float most = 0;
  for (int32_t i = 0; i < n; i++) {
    float d = fabsf(a[i * a_step] - b[i * b_step]);
    if (p == 0) {
      al_sum_add(&sum, d != 0);
    } else if (isinf(p)) {
      if (d > most || d != d) most = d;
    } else {
      al_sum_add(&sum, p == 1 ? d : p == 2 ? d * d : powf(d, p));
    }
  }
  float total = al_sum_value(&sum);
  return isinf(p) ? most : p == 0 || p == 1 ? total : p == 2 ? sqrtf(total) : powf(total, 1 / p);
}

/* Strides of a's dimensions but the last two, as part of `rank` ones to which they are broadcast. */
static void broadcast(const al_tensor *a, uint32_t rank, const int32_t *strides, int32_t *result) {
  uint32_t missing = rank - (a->rank - 2u);
  for (uint32_t d = 0; d < rank; d++) {
    result[d] = d < missing || a->sizes[d - missing] == 1 ? 0 : strides[d - missing];
  }
}

AL_APART static al_status begin(al_call *call, al_loop *loop, const al_tensor *a, const al_tensor *b, al_tensor *out) {
  uint32_t rank = (a->rank > b->rank ? a->rank : b->rank) - 2u;
  int32_t sizes[AL_MAX_RANK], strides[3][AL_MAX_RANK], own[AL_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) {
    uint32_t back = rank - d + 2;
    int32_t m = back <= a->rank ? a->sizes[a->rank - back] : 1, n = back <= b->rank ? b->sizes[b->rank - back] : 1;
    AL_NEED(m == n || m == 1 || n == 1, AL_SHAPE, 1);
    sizes[d] = m == 1 ? n : m;
  }
  sizes[rank] = a->sizes[a->rank - 2];
  sizes[rank + 1] = b->sizes[b->rank - 2];
  AL_TRY(al_resize(call, out, rank + 2, sizes));
  al_strides(a, own);
  broadcast(a, rank, own, strides[0]);
  al_strides(b, own);
  broadcast(b, rank, own, strides[1]);
  al_strides(out, strides[2]);
  al_loop_begin(loop, rank, sizes, AL_ALL_DIMS, 3, strides);
  return AL_OK;
}

AL_KERNEL(aten__cdist_forward_out, "aten::_cdist_forward.out") {
  const al_tensor *a = al_tensor_arg(call, 0), *b = al_tensor_arg(call, 1);
  double p = al_double_arg(call, 2);
  int64_t mode = al_int_arg_or(call, 3, 0); /* how to compute: no matter here */
  al_tensor *out = al_out_arg(call, 4);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(a->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(b->dtype == AL_F32, AL_DTYPE, 1);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, 4);
  AL_NEED(p >= 0, AL_VALUE, 2);
  AL_NEED(mode >= 0 && mode <= 2, AL_VALUE, 3);
  AL_NEED(a->rank >= 2, AL_SHAPE, 0);
  AL_NEED(b->rank >= 2 && a->sizes[a->rank - 1] == b->sizes[b->rank - 1], AL_SHAPE, 1);
  al_loop loop;
  AL_TRY(begin(call, &loop, a, b, out));
  if (al_numel(out) == 0) return AL_OK;
  int32_t as[AL_MAX_RANK], bs[AL_MAX_RANK], os[AL_MAX_RANK];
  al_strides(a, as);
  al_strides(b, bs);
  al_strides(out, os);
  for (; loop.more; al_loop_next(&loop)) {
    for (int32_t k = 0; k < (int32_t)loop.run; k++) {
      const float *x = (const float *)a->data + loop.offset[0] + k * loop.step[0];
      const float *y = (const float *)b->data + loop.offset[1] + k * loop.step[1];
      float *to = (float *)out->data + loop.offset[2] + k * loop.step[2];
      for (int32_t i = 0; i < a->sizes[a->rank - 2]; i++) {
        for (int32_t j = 0; j < b->sizes[b->rank - 2]; j++) {
          to[i * os[out->rank - 2] + j * os[out->rank - 1]] =
              distance(x + i * as[a->rank - 2], as[a->rank - 1], y + j * bs[b->rank - 2], bs[b->rank - 1],
                       a->sizes[a->rank - 1], (float)p);
        }
      }
    }
  }
  return AL_OK;
}

AL_KERNEL(aten__pdist_forward_out, "aten::_pdist_forward.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  double p = al_double_arg(call, 1);
  al_tensor *out = al_out_arg(call, 2);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, 2);
  AL_NEED(x->rank == 2, AL_SHAPE, 0);
  AL_NEED(p >= 0, AL_VALUE, 1);
  int64_t n = x->sizes[0], pairs = n * (n - 1) / 2;
  AL_NEED(pairs <= INT32_MAX, AL_SHAPE, 0);
  AL_TRY(al_resize(call, out, 1, (const int32_t[]){(int32_t)pairs}));
  int32_t strides[AL_MAX_RANK];
  al_strides(x, strides);
  float *to = out->data;
  for (int32_t i = 0; i < (int32_t)n; i++) {
    for (int32_t j = i + 1; j < (int32_t)n; j++) {
      const float *data = x->data;
      *to++ = distance(data + i * strides[0], strides[1], data + j * strides[0], strides[1], x->sizes[1], (float)p);
    }
  }
  return AL_OK;
}
