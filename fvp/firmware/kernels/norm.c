/* Layer, group and batch normalization of float32 tensors. */
#include "nn.h"

typedef struct moments {
  float mean, square; /* sum of squares of the differences from the mean */
  uint32_t n;
} moments;

/* Of tensor 0 of the loop, which is ready to begin again afterwards. */
static moments moments_of(al_loop *loop, const float *x) {
  if (!loop->more) return (moments){NAN, NAN, 0};
  moments m = {0};
  al_sum sum = {0}, square = {0}, rest = {0};
  for (; loop->more; al_loop_next(loop)) {
    const float *from = x + loop->offset[0];
    for (int32_t k = 0; k < (int32_t)loop->run; k++) al_sum_add(&sum, from[k * loop->step[0]]);
    m.n += loop->run;
  }
  m.mean = al_sum_value(&sum) / (float)m.n;
  for (loop->more = true; loop->more; al_loop_next(loop)) {
    const float *from = x + loop->offset[0];
    for (int32_t k = 0; k < (int32_t)loop->run; k++) {
      float d = from[k * loop->step[0]] - m.mean;
      al_sum_add(&rest, d);
      al_sum_add(&square, d * d);
    }
  }
  loop->more = true;
  m.square = al_sum_of_squares(&square, &rest, (float)m.n);
  return m;
}

/* y = (x - mean) * scale * weight + bias over the loop's tensors x, y, weight and bias. */
static void normalize(al_loop *loop, const float *x, float *y, const float *weight, const float *bias, float mean,
                      float scale) {
  for (; loop->more; al_loop_next(loop)) {
    for (int32_t k = 0; k < (int32_t)loop->run; k++) {
      float v = (x[loop->offset[0] + k * loop->step[0]] - mean) * scale;
      if (weight != NULL) v *= weight[loop->offset[2] + k * loop->step[2]];
      if (bias != NULL) v += bias[loop->offset[3] + k * loop->step[3]];
      y[loop->offset[1] + k * loop->step[1]] = v;
    }
  }
  loop->more = true;
}

static const float *floats(const al_tensor *t) {
  return t == NULL ? NULL : t->data;
}

static void strides_or_zero(const al_tensor *t, int32_t *strides) {
  for (uint32_t d = 0; d < AL_MAX_RANK; d++) strides[d] = 0;
  if (t != NULL) al_strides(t, strides);
}

/* Loop over the dimensions from `first` on; weight and bias, which may be NULL, have just these. */
AL_APART static void begin_trailing(al_loop *loop, const al_tensor *x, const al_tensor *out, const al_tensor *weight,
                           const al_tensor *bias, uint32_t first) {
  int32_t strides[4][AL_MAX_RANK];
  uint32_t rank = x->rank - first;
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  for (uint32_t d = 0; d < rank; d++) {
    strides[0][d] = strides[0][first + d];
    strides[1][d] = strides[1][first + d];
  }
  strides_or_zero(weight, strides[2]);
  strides_or_zero(bias, strides[3]);
  al_loop_begin(loop, rank, x->sizes + first, AL_ALL_DIMS, 4, strides);
}

AL_APART static void begin_leading(al_loop *loop, const al_tensor *const *tensors, uint32_t rank) {
  int32_t strides[4][AL_MAX_RANK];
  for (uint32_t t = 0; t < 4; t++) al_strides(tensors[t], strides[t]);
  al_loop_begin(loop, rank, tensors[0]->sizes, AL_ALL_DIMS, 4, strides);
}

static al_status check_floats(al_call *call, const al_tensor *const *tensors, const int32_t *arguments, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (tensors[i] != NULL) AL_NEED(tensors[i]->dtype == AL_F32, AL_DTYPE, arguments[i]);
  }
  return AL_OK;
}

/* Checks and gives sizes; `count` is that of the dimensions to normalize, argument 1. */
AL_APART static al_status prepare_layer_norm(al_call *call, const al_tensor *x, const al_tensor *weight,
                                             const al_tensor *bias, al_tensor *out, al_tensor *mean_out,
                                             al_tensor *scale_out, uint32_t count) {
  AL_NEED(count > 0 && count <= x->rank, AL_SHAPE, 1);
  uint32_t first = x->rank - count;
  int32_t sizes[AL_MAX_RANK];
  for (uint32_t d = 0; d < x->rank; d++) {
    sizes[d] = d < first ? x->sizes[d] : 1;
    if (d < first) continue;
    int64_t size = al_int_item(call, 1, d - first);
    AL_RETURN_IF_FAILED(call);
    AL_NEED(size == x->sizes[d], AL_SHAPE, 1);
    AL_NEED(weight == NULL || (weight->rank == count && weight->sizes[d - first] == x->sizes[d]), AL_SHAPE, 2);
    AL_NEED(bias == NULL || (bias->rank == count && bias->sizes[d - first] == x->sizes[d]), AL_SHAPE, 3);
  }
  AL_TRY(al_resize_like(call, out, x));
  AL_TRY(al_resize(call, mean_out, x->rank, sizes));
  return al_resize(call, scale_out, x->rank, sizes);
}

AL_KERNEL(aten_native_layer_norm_out, "aten::native_layer_norm.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  const al_tensor *weight = al_optional_tensor_arg(call, 2), *bias = al_optional_tensor_arg(call, 3);
  float eps = (float)al_double_arg(call, 4);
  al_tensor *out = al_out_arg(call, 5), *mean_out = al_out_arg(call, 6), *scale_out = al_out_arg(call, 7);
  uint32_t count = al_list_size(call, 1);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_floats(call, (const al_tensor *[]){x, weight, bias, out, mean_out, scale_out},
                      (const int32_t[]){0, 2, 3, 5, 6, 7}, 6));
  AL_TRY(prepare_layer_norm(call, x, weight, bias, out, mean_out, scale_out, count));
  uint32_t first = x->rank - count;
  al_loop rows, row;
  begin_trailing(&row, x, out, weight, bias, first);
  if (!row.more) return AL_OK;
  for (begin_leading(&rows, (const al_tensor *[]){x, out, mean_out, scale_out}, first); rows.more;
       al_loop_next(&rows)) {
    for (int32_t k = 0; k < (int32_t)rows.run; k++) {
      const float *from = floats(x) + rows.offset[0] + k * rows.step[0];
      moments m = moments_of(&row, from);
      float scale = 1.0f / sqrtf(m.square / (float)m.n + eps);
      normalize(&row, from, (float *)out->data + rows.offset[1] + k * rows.step[1], floats(weight), floats(bias),
                m.mean, scale);
      ((float *)mean_out->data)[rows.offset[2] + k * rows.step[2]] = m.mean;
      ((float *)scale_out->data)[rows.offset[3] + k * rows.step[3]] = scale;
    }
  }
  return AL_OK;
}

/* Loop over one sample's `channels` channels (sizes[1]) and all that follows, or over all samples of one channel. */
AL_APART static void begin_channels(al_loop *loop, const al_tensor *x, const al_tensor *out, int32_t channels, bool samples) {
  int32_t strides[4][AL_MAX_RANK], sizes[AL_MAX_RANK];
  al_strides(x, strides[0]);
  al_strides(out, strides[1]);
  for (uint32_t d = 0; d < x->rank; d++) {
    sizes[d] = d == 1 ? channels : d == 0 && !samples ? 1 : x->sizes[d];
    strides[2][d] = strides[3][d] = d == 1;
  }
  al_loop_begin(loop, x->rank, sizes, AL_ALL_DIMS, 4, strides);
}

/* Weight or bias, one for each channel. */
static al_status check_per_channel(al_call *call, const al_tensor *t, int32_t argument, int32_t channels) {
  if (t == NULL) return AL_OK;
  AL_NEED(t->dtype == AL_F32, AL_DTYPE, argument);
  AL_NEED(t->rank == 1 && t->sizes[0] == channels, AL_SHAPE, argument);
  return AL_OK;
}

AL_KERNEL(aten_native_group_norm_out, "aten::native_group_norm.out") {
  const al_tensor *x = al_tensor_arg(call, 0);
  const al_tensor *weight = al_optional_tensor_arg(call, 1), *bias = al_optional_tensor_arg(call, 2);
  int64_t n = al_int_arg(call, 3), c = al_int_arg(call, 4), hw = al_int_arg(call, 5), groups = al_int_arg(call, 6);
  float eps = (float)al_double_arg(call, 7);
  al_tensor *out = al_out_arg(call, 8), *mean_out = al_out_arg(call, 9), *scale_out = al_out_arg(call, 10);
  AL_RETURN_IF_FAILED(call);
  AL_TRY(check_floats(call, (const al_tensor *[]){x, out, mean_out, scale_out}, (const int32_t[]){0, 8, 9, 10}, 4));
  AL_NEED(x->rank >= 2 && x->sizes[0] == n && x->sizes[1] == c, AL_SHAPE, 0);
  AL_NEED(groups > 0 && groups <= INT32_MAX && c % groups == 0, AL_VALUE, 6);
  AL_TRY(check_per_channel(call, weight, 1, (int32_t)c));
  AL_TRY(check_per_channel(call, bias, 2, (int32_t)c));
  int64_t plane = 1;
  for (uint32_t d = 2; d < x->rank && plane <= INT32_MAX; d++) plane *= x->sizes[d];
  AL_NEED(plane == hw, AL_SHAPE, 5);
  AL_TRY(al_resize_like(call, out, x));
  AL_TRY(al_resize(call, mean_out, 2, (const int32_t[]){(int32_t)n, (int32_t)groups}));
  AL_TRY(al_resize(call, scale_out, 2, (const int32_t[]){(int32_t)n, (int32_t)groups}));
  if (al_numel(x) == 0) return AL_OK;
  int32_t x_strides[AL_MAX_RANK], y_strides[AL_MAX_RANK], m_strides[AL_MAX_RANK], s_strides[AL_MAX_RANK];
  al_strides(x, x_strides);
  al_strides(out, y_strides);
  al_strides(mean_out, m_strides);
  al_strides(scale_out, s_strides);
  int32_t channels = (int32_t)(c / groups);
  al_loop group;
  begin_channels(&group, x, out, channels, false);
  for (int32_t i = 0; i < (int32_t)n; i++) {
    for (int32_t g = 0; g < (int32_t)groups; g++) {
      int32_t channel = g * channels;
      const float *from = floats(x) + i * x_strides[0] + channel * x_strides[1];
      moments m = moments_of(&group, from);
      float scale = 1.0f / sqrtf(m.square / (float)m.n + eps);
      normalize(&group, from, (float *)out->data + i * y_strides[0] + channel * y_strides[1],
                weight == NULL ? NULL : floats(weight) + channel, bias == NULL ? NULL : floats(bias) + channel, m.mean,
                scale);
      ((float *)mean_out->data)[i * m_strides[0] + g * m_strides[1]] = m.mean;
      ((float *)scale_out->data)[i * s_strides[0] + g * s_strides[1]] = scale;
    }
  }
  return AL_OK;
}

/* Running statistics, which training updates. */
typedef struct running {
  const al_tensor *mean, *var;
  al_tensor *new_mean, *new_var; /* NULL without training */
  float momentum;
} running;

/* `stats` NULL or with new_mean: statistics of the batch. `first` is the number of the first out argument. */
static al_status batch_norm(al_call *call, const running *stats, float eps, uint32_t first) {
  const al_tensor *x = al_tensor_arg(call, 0);
  const al_tensor *weight = al_optional_tensor_arg(call, 1), *bias = al_optional_tensor_arg(call, 2);
  al_tensor *out = al_out_arg(call, first), *mean_out = al_out_arg(call, first + 1);
  al_tensor *scale_out = al_out_arg(call, first + 2);
  AL_RETURN_IF_FAILED(call);
  int32_t f = (int32_t)first;
  AL_TRY(check_floats(call, (const al_tensor *[]){x, out, mean_out, scale_out}, (const int32_t[]){0, f, f + 1, f + 2},
                      4));
  AL_NEED(x->rank >= 2, AL_SHAPE, 0);
  int32_t channels = x->sizes[1];
  AL_TRY(check_per_channel(call, weight, 1, channels));
  AL_TRY(check_per_channel(call, bias, 2, channels));
  if (stats != NULL) {
    AL_TRY(check_per_channel(call, stats->mean, 3, channels));
    AL_TRY(check_per_channel(call, stats->var, 4, channels));
  }
  bool of_batch = stats == NULL || stats->new_mean != NULL;
  AL_TRY(al_resize_like(call, out, x));
  AL_TRY(al_resize(call, mean_out, 1, (const int32_t[]){of_batch ? channels : 0}));
  AL_TRY(al_resize(call, scale_out, 1, (const int32_t[]){of_batch ? channels : 0}));
  if (al_numel(x) == 0) return AL_OK;
  int32_t x_strides[AL_MAX_RANK], y_strides[AL_MAX_RANK];
  al_strides(x, x_strides);
  al_strides(out, y_strides);
  al_loop loop;
  begin_channels(&loop, x, out, 1, true);
  for (int32_t c = 0; c < channels; c++) {
    const float *from = floats(x) + c * x_strides[1];
    float mean, scale;
    if (of_batch) {
      moments m = moments_of(&loop, from);
      mean = m.mean;
      scale = 1.0f / sqrtf(m.square / (float)m.n + eps);
      ((float *)mean_out->data)[c] = mean;
      ((float *)scale_out->data)[c] = scale;
      if (stats != NULL) {
        float *means = stats->new_mean->data, *vars = stats->new_var->data;
        means[c] = stats->momentum * mean + (1.0f - stats->momentum) * means[c];
        vars[c] = stats->momentum * (m.square / (float)(m.n - 1)) + (1.0f - stats->momentum) * vars[c];
      }
    } else {
      mean = floats(stats->mean)[c];
      scale = 1.0f / sqrtf(floats(stats->var)[c] + eps);
    }
    normalize(&loop, from, (float *)out->data + c * y_strides[1], weight == NULL ? NULL : floats(weight) + c,
              bias == NULL ? NULL : floats(bias) + c, mean, scale);
  }
  return AL_OK;
}

AL_KERNEL(aten__native_batch_norm_legit_no_training_out, "aten::_native_batch_norm_legit_no_training.out") {
  running stats = {.mean = al_tensor_arg(call, 3), .var = al_tensor_arg(call, 4)};
  float eps = (float)al_double_arg(call, 6);
  AL_RETURN_IF_FAILED(call);
  return batch_norm(call, &stats, eps, 7);
}

AL_KERNEL(aten__native_batch_norm_legit_out, "aten::_native_batch_norm_legit.out") {
  running stats = {.mean = al_tensor_arg(call, 3), .var = al_tensor_arg(call, 4)};
  bool training = al_bool_arg(call, 5);
  stats.momentum = (float)al_double_arg(call, 6);
  float eps = (float)al_double_arg(call, 7);
  AL_RETURN_IF_FAILED(call);
  if (training) {
    stats.new_mean = al_out_arg(call, 3);
    stats.new_var = al_out_arg(call, 4);
    AL_RETURN_IF_FAILED(call);
  }
  return batch_norm(call, &stats, eps, 8);
}

AL_KERNEL(aten__native_batch_norm_legit_no_stats_out, "aten::_native_batch_norm_legit.no_stats_out") {
  bool training = al_bool_arg(call, 3);
  float eps = (float)al_double_arg(call, 5);
  AL_RETURN_IF_FAILED(call);
  AL_NEED(training, AL_VALUE, 3);
  return batch_norm(call, NULL, eps, 6);
}
