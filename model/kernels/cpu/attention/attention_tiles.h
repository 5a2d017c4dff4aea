// Rows of queries with one tile of the cache: dot products with its keys, and weighted sums of its values.
//
// A tile is one key head's part of a block: keys [D, B] or values [B, D]. Several rows share each load, and the sums of
// a row are independent of the other rows.
#pragma once

#include "functions.h"

namespace LEVEL {

// One row of scores: one query row with one query head.
struct ScoreRow {
  const float* query;  // [D]
  long lo, hi;         // the columns lo <= k < hi that it sees
  long row, head;      // of the queries
};

// Vector v of the VECTORS at p, with a prefetch of the memory `ahead` of it. Many small prefetches use the memory
// better than one of a whole tile.
template <int VECTORS, class T>
ALWAYS_INLINE Vector load_and_fetch(const T* p, int v, long ahead) {
  constexpr int VECTORS_OF_LINE = 64 / (LANES * sizeof(T));
  if (VECTORS == 1 || v % VECTORS_OF_LINE == 0) __builtin_prefetch(p + v * LANES + ahead, 0, 3);
  return load(p + v * LANES);
}

// scores[r * stride + b] = sum over d of query r[d] * keys[d, b], added in the order of d; keys [dim, size]; `ahead`:
// how many numbers after these the next ones are, or 0.
template <int ROWS, int VECTORS, class T>
ALWAYS_INLINE void dots(const ScoreRow* rows, const T* keys, long ahead, long dim, long size, long b, float* scores,
                        long stride) {
  for (; b + VECTORS * LANES <= size; b += VECTORS * LANES) {
    Vector sums[ROWS][VECTORS];
    const float* queries[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      queries[r] = rows[r].query;
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = zeros();
    }
    const T* at = keys + b;
    for (long d = 0; d < dim; ++d, at += size) {
      Vector columns[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) columns[v] = load_and_fetch<VECTORS>(at, v, ahead);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const Vector number = all_lanes(queries[r][d]);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(number, columns[v], sums[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) store(scores + r * stride + b + v * LANES, sums[r][v]);
  }
  if constexpr (VECTORS > 1) {
    dots<ROWS, VECTORS / 2>(rows, keys, ahead, dim, size, b, scores, stride);
  } else {
    for (; b < size; ++b)
      for (int r = 0; r < ROWS; ++r) {
        float sum = 0.0f;
        for (long d = 0; d < dim; ++d) sum = fma(rows[r].query[d], widen(keys[d * size + b]), sum);
        scores[r * stride + b] = sum;
      }
  }
}

// Dots of `num` queries with a tile of keys, into the columns of scores [num, stride] from `start` on.
//
// Rows are taken eight at a time, which share each load of the keys; four where eight would not stay in registers.
template <int ROWS = PARTS == 1 ? 8 : 4, class T>
void score_tile(const ScoreRow* rows, long num, const T* keys, long ahead, long dim, long size, float* scores,
                long stride, long start) {
  for (; num >= ROWS; num -= ROWS, rows += ROWS, scores += ROWS * stride)
    if (start < rows[ROWS - 1].hi && start + size > rows[0].lo)  // one of them may see it
      dots<ROWS, PARTS == 1 || ROWS < 4 ? 2 : 1>(rows, keys, ahead, dim, size, 0, scores + start, stride);
  if constexpr (ROWS > 1) score_tile<ROWS / 2>(rows, num, keys, ahead, dim, size, scores, stride, start);
}

// mixed[r * dim + d] += sum over k of weights[r * stride + k] * values[k, d], added in the order of k; values
// [num_keys, dim].
template <int ROWS, int VECTORS, class T>
ALWAYS_INLINE void mix(const float* weights, long stride, long num_keys, const T* values, long ahead, long dim, long d,
                       float* mixed) {
  for (; d + VECTORS * LANES <= dim; d += VECTORS * LANES) {
    Vector sums[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(mixed + r * dim + d + v * LANES);
    const T* at = values + d;
    for (long k = 0; k < num_keys; ++k, at += dim) {
      Vector columns[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) columns[v] = load_and_fetch<VECTORS>(at, v, ahead);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Vector weight = all_lanes(weights[r * stride + k]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(weight, columns[v], sums[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) store(mixed + r * dim + d + v * LANES, sums[r][v]);
  }
  if constexpr (VECTORS > 1) {
    mix<ROWS, VECTORS / 2>(weights, stride, num_keys, values, ahead, dim, d, mixed);
  } else {
    for (; d < dim; ++d)
      for (int r = 0; r < ROWS; ++r)
        for (long k = 0; k < num_keys; ++k)
          mixed[r * dim + d] = fma(weights[r * stride + k], widen(values[k * dim + d]), mixed[r * dim + d]);
  }
}

// Adds to mixed [num, dim] the weighted sums of a tile of values; its first key has the column `start`. weights [num,
// stride]. Four rows at a time share the keys that all of them see.
template <int ROWS = 4, class T>
void mix_tile(const ScoreRow* rows, long num, const float* weights, long stride, long start, const T* values,
              long ahead, long dim, long size, float* mixed) {
  constexpr int VECTORS = PARTS == 1 ? 4 : 4 / ROWS;
  const long end = start + size;
  for (; num >= ROWS; num -= ROWS, rows += ROWS, weights += ROWS * stride, mixed += ROWS * dim) {
    long least = rows[ROWS - 1].lo, most = rows[0].hi;  // all of them see least <= k < most
    least = least < start ? start : least;
    most = most > end ? end : most;
    const bool share = least < most;
    if constexpr (ROWS > 1) {
      const auto alone = [&](int r, long from, long to) {
        from = from < rows[r].lo ? rows[r].lo : from;
        to = to > rows[r].hi ? rows[r].hi : to;
        if (from < to)
          mix<1, 4>(weights + r * stride + from, stride, to - from, values + (from - start) * dim, ahead, dim, 0,
                    mixed + r * dim);
      };
      for (int r = 0; r < ROWS; ++r) alone(r, start, share ? least : end);
      if (!share) continue;
      mix<ROWS, VECTORS>(weights + least, stride, most - least, values + (least - start) * dim, ahead, dim, 0, mixed);
      for (int r = 0; r < ROWS; ++r) alone(r, most, end);
    } else if (share) {
      mix<1, VECTORS>(weights + least, stride, most - least, values + (least - start) * dim, ahead, dim, 0, mixed);
    }
  }
  if constexpr (ROWS > 1) mix_tile<ROWS / 2>(rows, num, weights, stride, start, values, ahead, dim, size, mixed);
}

}  // namespace LEVEL
