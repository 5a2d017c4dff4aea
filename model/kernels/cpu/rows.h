// Operations on one row of numbers between matrix products: norms, gates, rotation. A row's bits depend only on the
// row; numbers are of type X, float or bfloat16, and arithmetic is float32, rounded when a result is stored.
//
// Each step is one template of N: a Vector for whole vectors, a float for the remaining numbers.
#pragma once

#include "functions.h"
#include "level.h"

namespace LEVEL {

template <class N, class X>
ALWAYS_INLINE N take(const X* p) {
  if constexpr (sizeof(N) == sizeof(Vector)) return load(p);
  else return widen(*p);
}
template <class Y>
ALWAYS_INLINE void put(Y* p, const Vector& v) { store(p, v); }
template <class Y>
ALWAYS_INLINE void put(Y* p, float x) { store_one(p, x); }

// step<N>(i) for all numbers i < width, sixteen at a time, then one at a time.
template <class F>
ALWAYS_INLINE void each_number(long width, F step) {
  const long whole = lanes_down(width);
  for (long i = 0; i < whole; i += LANES) step.template operator()<Vector>(i);
  for (long i = whole; i < width; ++i) step.template operator()<float>(i);
}

// The sum over a row: add<N>(i, sum) returns the sum plus the numbers at i. Lane by lane, then over the lanes, then
// over the numbers after the whole vectors.
template <class F>
ALWAYS_INLINE float sum_over_row(long width, F add) {
  const long whole = lanes_down(width);
  Vector lanes = zeros();
  for (long i = 0; i < whole; i += LANES) lanes = add(i, lanes);
  float sum = sum_of_lanes(lanes);
  for (long i = whole; i < width; ++i) sum = add(i, sum);
  return sum;
}

// out = x / sqrt(mean(x^2) + eps) * weight; x, out [width], which may be the same memory. Where weight [width] has the
// type of x, the quotient is rounded to that type before the product; a weight of float32 is multiplied first.
template <class X, class W>
ALWAYS_INLINE void rms_norm_row(const X* x, const W* weight, long width, float eps, X* out) {
  const float sum = sum_over_row(width, [&]<class N>(long i, const N& sum) {
    const N numbers = take<N>(x + i);
    return fma(numbers, numbers, sum);
  });
  const float inverse = 1.0f / __builtin_sqrtf(sum / float(width) + eps);
  each_number(width, [&]<class N>(long i) {
    put(out + i, rounded<W>(take<N>(x + i) * inverse) * take<N>(weight + i));
  });
}

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; x, out [width], which may be the same memory;
// weight [width]; bias [width], or null for none.
template <class X, class W, class Y>
ALWAYS_INLINE void layer_norm_row(const X* x, const W* weight, const W* bias, long width, float eps, Y* out) {
  const float sum = sum_over_row(width, [&]<class N>(long i, const N& sum) { return sum + take<N>(x + i); });
  const float mean = sum / float(width);
  const float squares = sum_over_row(width, [&]<class N>(long i, const N& sum) {
    const N centred = take<N>(x + i) - mean;
    return fma(centred, centred, sum);
  });
  const float inverse = 1.0f / __builtin_sqrtf(squares / float(width) + eps);
  each_number(width, [&]<class N>(long i) {
    const N normal = (take<N>(x + i) - mean) * inverse;
    put(out + i, fma(normal, take<N>(weight + i), bias ? take<N>(bias + i) : spread<N>(0.0f)));
  });
}

// out = activation(gate), rounded, times up: [width] each.
template <class X>
ALWAYS_INLINE void activate_times_row(const X* gate, const X* up, long width, long activation, X* out) {
  each_number(width, [&]<class N>(long i) {
    put(out + i, rounded<X>(activate(take<N>(gate + i), activation)) * take<N>(up + i));
  });
}
template <class X>
ALWAYS_INLINE void silu_times_row(const X* gate, const X* up, long width, X* out) {
  activate_times_row(gate, up, width, SILU, out);
}

// x = relu(x - mean - deviations * standard deviation), in place: x [width].
template <class X>
ALWAYS_INLINE void drop_small_row(X* x, long width, float deviations) {
  const float sum = sum_over_row(width, [&]<class N>(long i, const N& sum) { return sum + take<N>(x + i); });
  const float mean = sum / float(width);
  const float squares = sum_over_row(width, [&]<class N>(long i, const N& sum) {
    const N centred = take<N>(x + i) - mean;
    return fma(centred, centred, sum);
  });
  const float least = mean + __builtin_sqrtf(squares / float(width)) * deviations;
  each_number(width, [&]<class N>(long i) { put(x + i, activate(take<N>(x + i) - least, RELU)); });
}

// A row of cos and sin, [num_rotated] each, sin with the sign of the first half flipped: the first num_rotated
// dimensions of a head rotation, an even number, possibly none.
struct Rotation {
  const float* cos;
  const float* sin;
  long num_rotated;
};

// Calls result(d, numbers) with the rotated numbers from d of a head x [dim], a Vector or a float at a time. result may
// store them in place of x.
template <class X, class F>
ALWAYS_INLINE void rotate_head(const X* x, long dim, const Rotation& rotation, F result) {
  const long half = rotation.num_rotated / 2;
  const float *cos = rotation.cos, *sin = rotation.sin;
  each_number(half, [&]<class N>(long d) {
    const N low = take<N>(x + d), high = take<N>(x + d + half);
    result(d, fma(low, take<N>(cos + d), high * take<N>(sin + d)));
    result(d + half, fma(high, take<N>(cos + d + half), low * take<N>(sin + d + half)));
  });
  const X* rest = x + rotation.num_rotated;
  each_number(dim - rotation.num_rotated, [&]<class N>(long d) { result(rotation.num_rotated + d, take<N>(rest + d)); });
}

// How a row of queries, keys and values is made up, and the blocks of the cache.
struct Heads {
  long num_heads;      // H, of queries
  long num_key_heads;  // K
  long dim;            // D
  long block_size;     // B, rows to a block
};

// Rotates `count` heads of x [count, D] into y [count, D], which may be the same memory.
template <class X, class Y>
ALWAYS_INLINE void rotate_heads(const X* x, long count, const Rotation& rotation, long dim, Y* y) {
  for (long h = 0; h < count; ++h) {
    Y* out = y + h * dim;
    rotate_head(x + h * dim, dim, rotation, [&](long d, const auto& numbers) { put(out + d, numbers); });
  }
}

// Rotates the keys of kv [2K, D] (key heads, value heads) into place `slot` of keys [block, K, D, B], and copies its
// values to that of values [block, K, B, D]. slot: block * B + the place in the block.
template <class X>
ALWAYS_INLINE void rotate_and_store_row(const X* kv, const Rotation& rotation, long slot, const Heads& heads, X* keys,
                                        X* values) {
  const long dim = heads.dim, size = heads.block_size, block = slot / size, place = slot % size;
  for (long h = 0; h < heads.num_key_heads; ++h) {
    const long at = (block * heads.num_key_heads + h) * dim * size;  // of the head in both caches
    const X* key = kv + h * dim;
    X* column = keys + at + place;
    rotate_head(key, dim, rotation, [&]<class N>(long d, const N& numbers) {
      X stored[LANES];
      put(stored, numbers);
      for (long i = 0; i < long(sizeof(N) / sizeof(float)); ++i) column[(d + i) * size] = stored[i];
    });
    memcpy(values + at + place * dim, key + heads.num_key_heads * dim, dim * sizeof(X));
  }
}

}  // namespace LEVEL
