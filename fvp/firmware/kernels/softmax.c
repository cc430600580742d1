/* _softmax and _log_softmax over one dimension of a float32 tensor. */
#include "nn.h"
#include "simd.h"

static void log_softmax(const float *x, int32_t x_step, float *y, int32_t y_step, uint32_t count) {
  int32_t n = (int32_t)count;
  float top = -INFINITY;
  for (int32_t i = 0; i < n; i++) top = x[i * x_step] > top ? x[i * x_step] : top;
  al_sum sum = {0};
  for (int32_t i = 0; i < n; i++) al_sum_add(&sum, expf(x[i * x_step] - top));
  float log_total = logf(al_sum_value(&sum));
  for (int32_t i = 0; i < n; i++) y[i * y_step] = x[i * x_step] - top - log_total;
}

static al_status each_row(al_call *call, void (*row)(const float *, int32_t, float *, int32_t, uint32_t)) {
  const al_tensor *x = al_tensor_arg(call, 0);
  int64_t dim = al_int_arg(call, 1);
  bool half_to_float = al_bool_arg(call, 2);
  al_tensor *out = al_out_arg(call, 3);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(x->dtype == AL_F32, AL_DTYPE, 0);
  AL_NEED(out->dtype == AL_F32, AL_DTYPE, 3);
  AL_NEED(!half_to_float, AL_VALUE, 2);
  int32_t axis = al_wrap_dim(dim, x->rank);
  AL_NEED(axis >= 0, AL_INDEX, 1);
  AL_TRY(al_resize_like(call, out, x));
  if (al_numel(x) == 0) return AL_OK;
  int32_t strides[2][AL_MAX_RANK] = {{0}};
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  uint32_t n = x->rank > 0 ? (uint32_t)x->sizes[axis] : 1;
  al_loop w;
  for (al_loop_begin(&w, x->rank, x->sizes, ~(1u << axis), 2, strides); w.more; al_loop_next(&w)) {
    for (int32_t k = 0; k < (int32_t)w.run; k++) {
      row((const float *)x->data + w.offset[0] + k * w.step[0], strides[0][axis],
          (float *)out->data + w.offset[1] + k * w.step[1], strides[1][axis], n);
    }
  }
  return AL_OK;
}

AL_KERNEL(aten__softmax_out, "aten::_softmax.out") {
  return each_row(call, al_softmax_run);
}

AL_KERNEL(aten__log_softmax_out, "aten::_log_softmax.out") {
  return each_row(call, log_softmax);
}
