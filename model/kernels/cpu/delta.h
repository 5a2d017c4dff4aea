// Gated delta nets (see model/network/recurrences.py): the matrices of heads, position by position. A row's bits depend
// only on its own sequence; arithmetic is float32.
//
// Axes: K key heads, V value heads, each key head shared by V / K of them, k and v their widths.
#pragma once

#include "rows.h"
#include "threads/scratch.h"

namespace LEVEL {

struct DeltaSizes {
  long num_key_heads, num_value_heads, key_dim, value_dim;
  long num_shared() const { return num_value_heads / num_key_heads; }
  long matrix() const { return key_dim * value_dim; }
};

// The rows of one sequence, and its states before and after them.
struct Span {
  long first, end, read, write;
  long is_first;  // 1: the sequence begins, its state before is zero
};

// A strength, and the factor of decay: exp(-rate * softplus(step + bias)).
template <class N>
ALWAYS_INLINE N decay_of(N step, N rate, N bias) { return exp(0.0f - rate * softplus(step + bias)); }

// x divided by its length, times `factor`: x, out [width].
template <class X>
ALWAYS_INLINE void unit(const X* x, long width, float factor, float* out) {
  const float squares = sum_over_row(width, [&]<class N>(long i, const N& sum) {
    const N numbers = take<N>(x + i);
    return fma(numbers, numbers, sum);
  });
  const float scale = factor / __builtin_sqrtf(squares + 1e-6f);
  each_number(width, [&]<class N>(long i) { put(out + i, take<N>(x + i) * scale); });
}

// COUNT groups of columns from i on: S = decay S, S += k (beta (v - k S)), z = q S, of S [k, v]. overlap: q k.
template <int COUNT, class N, class X>
ALWAYS_INLINE void update_columns(const float* q, const float* k, const X* v, float beta, float decay, float overlap,
                                  const DeltaSizes& sizes, const float* old, float* matrix, X* z, long i) {
  constexpr long STEP = sizeof(N) / sizeof(float);
  const long width = sizes.value_dim;
  N found[COUNT], read[COUNT];
  unrolled<COUNT>([&](auto c) { found[c] = read[c] = spread<N>(0.0f); });
  for (long r = 0; r < sizes.key_dim; ++r)
    unrolled<COUNT>([&](auto c) {
      const N decayed = take<N>(old + r * width + i + c * STEP) * decay;
      found[c] = fma(spread<N>(k[r]), decayed, found[c]);
      read[c] = fma(spread<N>(q[r]), decayed, read[c]);
    });
  unrolled<COUNT>([&](auto c) {
    found[c] = (take<N>(v + i + c * STEP) - found[c]) * beta;  // the change
    put(z + i + c * STEP, fma(spread<N>(overlap), found[c], read[c]));  // q (S + k change), without a second pass
  });
  for (long r = 0; r < sizes.key_dim; ++r)
    unrolled<COUNT>([&](auto c) {
      const long at = r * width + i + c * STEP;
      put(matrix + at, fma(spread<N>(k[r]), found[c], take<N>(old + at) * decay));
    });
}

// One position of the value heads that share one key head: q, k [k] and v, z [V / K, v] of X, beta and decay [V / K],
// old and matrices [V / K, k, v], which may be the same memory.
template <class X>
ALWAYS_INLINE void update_matrices(const X* q, const X* k, const X* v, const float* beta, const float* decay,
                                   const DeltaSizes& sizes, const float* old, float* matrices, X* z) {
  constexpr int GROUP = 4 / PARTS;  // as many columns as fit in the registers
  const long dim = sizes.key_dim, width = sizes.value_dim, whole = lanes_down(width);
  struct Units;
  float *query = scratch<Units, float>(2 * dim), *key = query + dim;
  unit(q, dim, 1.0f / __builtin_sqrtf(float(dim)), query);
  unit(k, dim, 1.0f, key);
  const float overlap = sum_over_row(dim, [&]<class N>(long i, const N& sum) {
    return fma(take<N>(query + i), take<N>(key + i), sum);
  });
  for (long s = 0; s < sizes.num_shared(); ++s) {
    const float* before = old + s * sizes.matrix();
    float* after = matrices + s * sizes.matrix();
    const X* value = v + s * width;
    X* out = z + s * width;
    const auto update = [&]<int COUNT, class N>(long i) {
      update_columns<COUNT, N>(query, key, value, beta[s], decay[s], overlap, sizes, before, after, out, i);
    };
    long i = 0;
    for (; i + GROUP * LANES <= whole; i += GROUP * LANES) update.template operator()<GROUP, Vector>(i);
    for (; i < whole; i += LANES) update.template operator()<1, Vector>(i);
    for (; i < width; ++i) update.template operator()<1, float>(i);
  }
}

// The matrices [V / K, k, v] of key head h before a span, in `memory` [state, V, k, v], and the place of those after it.
// A sequence that begins here begins with zeros, in that place.
struct SpanMatrices {
  const float* old;
  float* matrices;
  SpanMatrices(float* memory, const Span& span, const DeltaSizes& sizes, long h) {
    const long size = sizes.num_shared() * sizes.matrix(), state = sizes.num_key_heads * size;
    matrices = memory + span.write * state + h * size;
    old = span.is_first ? matrices : memory + span.read * state + h * size;
    if (span.is_first) memset(matrices, 0, size * sizeof(float));
  }
};

}  // namespace LEVEL
