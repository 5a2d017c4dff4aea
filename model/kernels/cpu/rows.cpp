// The small steps between matrix products. Each result depends only on its row. The calling thread computes a few rows
// without the others: waking them takes longer than the rows of a decode step.
#include "rows.h"

#include "threads/pool.h"

namespace LEVEL {
namespace {

// work(row) for each row, in one thread where there are fewer than `from`.
template <class F>
ALWAYS_INLINE void each_row(long num_rows, long from, F work) {
  parallel_shares(num_rows, from, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) work(row);
  });
}

template <class X, class W>
void rms_norm(const X* x, const W* weight, X* out, long num_rows, long width, float eps) {
  each_row(num_rows, 64, [&](long row) { rms_norm_row(x + row * width, weight, width, eps, out + row * width); });
}

template <class X>
void layer_norm(const X* x, const X* weight, const X* bias, X* out, long num_rows, long width, float eps) {
  each_row(num_rows, 64, [&](long row) {
    layer_norm_row(x + row * width, weight, bias, width, eps, out + row * width);
  });
}

template <class X>
void activate_times(const X* gate_up, X* out, long num_rows, long width, long activation) {
  each_row(num_rows, 16, [&](long row) {
    const X* gate = gate_up + 2 * row * width;
    activate_times_row(gate, gate + width, width, activation, out + row * width);
  });
}

template <class X>
void rotate_and_store(const X* qkv, const float* cos, const float* sin, long num_rotated, const long* slots,
                      long num_rows, const Heads& heads, float* q, X* keys, X* values) {
  const long stride = (heads.num_heads + 2 * heads.num_key_heads) * heads.dim;
  each_row(num_rows, 32, [&](long row) {
    const Rotation rotation{cos + row * num_rotated, sin + row * num_rotated, num_rotated};
    float* queries = q + row * heads.num_heads * heads.dim;
    rotate_heads(qkv + row * stride, heads.num_heads, rotation, heads.dim, queries);
    rotate_and_store_row(qkv + row * stride + heads.num_heads * heads.dim, rotation, slots[row], heads, keys, values);
  });
}

}  // namespace
}  // namespace LEVEL

// out = x / sqrt(mean(x^2) + eps), rounded, times weight, of each row: x, out [num_rows, width]; weight [width]
EXPORT(void, rms_norm_f32)(const float* x, const float* weight, float* out, long num_rows, long width, float eps) {
  LEVEL::rms_norm(x, weight, out, num_rows, width, eps);
}
EXPORT(void, rms_norm_bf16)(const LEVEL::bfloat16* x, const LEVEL::bfloat16* weight, LEVEL::bfloat16* out,
                            long num_rows, long width, float eps) {
  LEVEL::rms_norm(x, weight, out, num_rows, width, eps);
}
// The same, rounded only after the product with weight.
EXPORT(void, rms_norm_rounded_once_bf16)(const LEVEL::bfloat16* x, const float* weight, LEVEL::bfloat16* out,
                                         long num_rows, long width, float eps) {
  LEVEL::rms_norm(x, weight, out, num_rows, width, eps);
}

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias of each row: x, out [num_rows, width]; weight, bias [width],
// bias null for none
EXPORT(void, layer_norm_f32)(const float* x, const float* weight, const float* bias, float* out, long num_rows,
                             long width, float eps) {
  LEVEL::layer_norm(x, weight, bias, out, num_rows, width, eps);
}
EXPORT(void, layer_norm_bf16)(const LEVEL::bfloat16* x, const LEVEL::bfloat16* weight, const LEVEL::bfloat16* bias,
                              LEVEL::bfloat16* out, long num_rows, long width, float eps) {
  LEVEL::layer_norm(x, weight, bias, out, num_rows, width, eps);
}

// out = activation(gate), rounded, times up, of each row: gate_up [num_rows, 2, width], out [num_rows, width]
EXPORT(void, activate_times_f32)(const float* gate_up, float* out, long num_rows, long width, long activation) {
  LEVEL::activate_times(gate_up, out, num_rows, width, activation);
}
EXPORT(void, activate_times_bf16)(const LEVEL::bfloat16* gate_up, LEVEL::bfloat16* out, long num_rows, long width,
                                  long activation) {
  LEVEL::activate_times(gate_up, out, num_rows, width, activation);
}

// x = relu(x - mean - deviations * standard deviation) of each row, in place: x [num_rows, width]
EXPORT(void, drop_small_f32)(float* x, long num_rows, long width, float deviations) {
  LEVEL::each_row(num_rows, 16, [&](long row) { LEVEL::drop_small_row(x + row * width, width, deviations); });
}
EXPORT(void, drop_small_bf16)(LEVEL::bfloat16* x, long num_rows, long width, float deviations) {
  LEVEL::each_row(num_rows, 16, [&](long row) { LEVEL::drop_small_row(x + row * width, width, deviations); });
}

// x = cap * tanh(x / cap), in place. x [num_rows, width]
EXPORT(void, soft_cap_f32)(float* x, long num_rows, long width, float cap) {
  using namespace LEVEL;
  parallel_shares(num_rows, 4, [&](long begin, long end) {
    float* first = x + begin * width;
    each_number((end - begin) * width, [&]<class N>(long i) { put(first + i, cap * tanh(take<N>(first + i) / cap)); });
  });
}

// Rotates queries and keys; queries go to q, keys and values into place slots[row] of the cache.
// qkv [num_rows, H + 2K, D]; cos, sin [num_rows, num_rotated]; slots [num_rows]: block * block_size + place;
// q [num_rows, H, D]; keys [block, K, D, block_size]; values [block, K, block_size, D]
EXPORT(void, rotate_and_store_f32)(const float* qkv, const float* cos, const float* sin, long num_rotated,
                                   const long* slots, long num_rows, long num_heads, long num_key_heads, long dim,
                                   long block_size, float* q, float* keys, float* values) {
  const LEVEL::Heads heads{num_heads, num_key_heads, dim, block_size};
  LEVEL::rotate_and_store(qkv, cos, sin, num_rotated, slots, num_rows, heads, q, keys, values);
}
EXPORT(void, rotate_and_store_bf16)(const LEVEL::bfloat16* qkv, const float* cos, const float* sin, long num_rotated,
                                    const long* slots, long num_rows, long num_heads, long num_key_heads, long dim,
                                    long block_size, float* q, LEVEL::bfloat16* keys, LEVEL::bfloat16* values) {
  const LEVEL::Heads heads{num_heads, num_key_heads, dim, block_size};
  LEVEL::rotate_and_store(qkv, cos, sin, num_rotated, slots, num_rows, heads, q, keys, values);
}
