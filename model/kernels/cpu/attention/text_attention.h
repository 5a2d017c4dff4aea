// Attention within a whole text, where every row sees all rows. Keys are the weight of a product with queries, and
// values the weight of a product with patterns, in the layout and with the forms of products.h: each score is one chain
// over the dimensions in order, each mixed number one chain over the keys. A pattern is rounded to bfloat16 only for
// forms that multiply bfloat16; otherwise a row has the same bits as attention over the cache. The bits depend only on
// the text.
//
// Axes: n rows and n keys, H heads, D head dimension.
#pragma once

#include "threads/pool.h"
#include "products/products.h"
#include "rows.h"

namespace LEVEL {

constexpr long PATTERN_ROWS = 48;  // rows with scores in the cache at once: a multiple of ROW_STEP

// Users of scratch.
struct LaidKeys {};
struct LaidValues {};
struct LaidQueries {};
struct Scores {};
struct Patterns {};

struct TextHeads {
  long num_heads, dim;
  float scale;  // of scores
};

// The chains of sums [rows][64] in V vectors of columns; 1 <= rows <= R.
template <class Form, int V, int R = ROWS_TOGETHER>
void add_columns(long rows, const typename Form::Number* x, long stride, const Word* w, long inputs, float* sums) {
  if constexpr (R > 1)
    if (rows < R) return add_columns<Form, V, R - 1>(rows, x, stride, w, inputs, sums);
  add_chains<Form, R, V, 0>(x, stride, w, inputs, inputs, w, true, sums);
}

// `count` columns, up to whole vectors, of sums [num_rows][64] = rows x, `stride` apart, times the block w. It differs
// from `sum_block` in that few columns have their weights near each other.
template <class Form, int V = vectors_together(ROWS_TOGETHER)>
void sum_columns(const typename Form::Number* x, long stride, long num_rows, const Word* w, long inputs, long count,
                 float* sums) requires(!__is_same(Form, Tiled)) {
  if constexpr (V > 1)
    if (count <= (V - 1) * LANES) return sum_columns<Form, V - 1>(x, stride, num_rows, w, inputs, count, sums);
  const long groups = (num_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  for (long group = 0; group < groups; ++group) {
    const long r = group * num_rows / groups, rows = (group + 1) * num_rows / groups - r;
    for (long column = 0; column < count; column += V * LANES)
      add_columns<Form, V>(rows, x + r * stride, stride, w + column, inputs, sums + r * BLOCK + column);
  }
}
#if defined(TILES)
template <class Form>
void sum_columns(const bfloat16* x, long stride, long num_rows, const Word* w, long inputs, long count, float* sums)
    requires(__is_same(Form, Tiled)) {
  sum_by_tiles(x, stride, num_rows, w, inputs, count, sums, [](long, long) {});
}
#endif

// laid [ceil(n / 64)][steps][64] = keys x [n][D], `stride` apart, as a weight of n outputs: 4 / sizeof(T) dimensions in
// a word.
template <class T>
void lay_keys(const T* x, long stride, long num_keys, long dim, Word* laid) {
  constexpr long TOGETHER = sizeof(Word) / sizeof(T);
  const long num_steps = (dim + TOGETHER - 1) / TOGETHER;
  for (long first = 0; first < num_keys; first += BLOCK, laid += num_steps * BLOCK) {
    const long count = num_keys - first < BLOCK ? num_keys - first : BLOCK;
    if (count < BLOCK || dim % TOGETHER) memset(laid, 0, num_steps * BLOCK * sizeof *laid);
    for (long j = 0; j < count; ++j) {
      const T* key = x + (first + j) * stride;
      for (long s = 0; s < dim / TOGETHER; ++s) memcpy(laid + s * BLOCK + j, key + s * TOGETHER, sizeof(Word));
      if (dim % TOGETHER) memcpy(laid + dim / TOGETHER * BLOCK + j, key + dim - 1, sizeof(T));
    }
  }
}

// laid [ceil(D / 64)][steps][64] = values x [n][D], `stride` apart, as a weight of D outputs: 4 / sizeof(T) keys in a
// word.
template <class T>
void lay_values(const T* x, long stride, long num_keys, long dim, Word* laid) {
  constexpr long TOGETHER = sizeof(Word) / sizeof(T);
  const long num_steps = (num_keys + TOGETHER - 1) / TOGETHER;
  for (long first = 0; first < dim; first += BLOCK, laid += num_steps * BLOCK) {
    const long count = dim - first < BLOCK ? dim - first : BLOCK;
    for (long s = 0; s < num_steps; ++s) {
      const T* even = x + s * TOGETHER * stride + first;
      const T* odd = TOGETHER == 2 && 2 * s + 1 < num_keys ? even + stride : nullptr;
      float* to = reinterpret_cast<float*>(laid + s * BLOCK);
      for (long j = 0; j < lanes_down(count); j += LANES) {
        const Vector low = load(even + j), high = odd ? load(odd + j) : zeros();
        store(to + j, TOGETHER == 1 ? low : each_part([&](int i) {
          return (Floats)((Words)high.part[i] | ((Words)low.part[i] >> 16));
        }));
      }
      if (count % LANES) store(to + lanes_down(count), zeros());
      for (long j = lanes_down(count); j < count; ++j) {
        memcpy(to + j, even + j, sizeof(T));
        if (odd) memcpy(reinterpret_cast<char*>(to + j) + sizeof(T), odd + j, sizeof(T));
      }
    }
  }
}

ALWAYS_INLINE void store_weights(float* p, const Vector& weights) { store(p, weights); }
// Each 0, a normal number up to 1, or none: so rounded as `store` does, by one instruction where there is one.
ALWAYS_INLINE void store_weights(bfloat16* p, const Vector& weights) {
#if defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)weights.part[0]);
  memcpy(p, &rounded, sizeof rounded);
#else
  store(p, weights);
#endif
}

// patterns [num_rows][n], `stride` apart, up to whole vectors, = softmax of scores that are scaled first, by the steps
// of `softmax` in attention.h. scores [ceil(n / 64)][num_rows][64] are overwritten. Each loop is over
// all rows, so that the slow part of a row, folding lanes, overlaps with other rows.
template <class Number>
void make_patterns(float* scores, long num_rows, long num_keys, float scale, Number* patterns, long stride) {
  float largest[PATTERN_ROWS], totals[PATTERN_ROWS][LANES];
  const auto at = [&](long r, long k) { return scores + (k / BLOCK * num_rows + r) * BLOCK + k % BLOCK; };
  const auto scaled = [&](long r, long k) {
    const Vector some = load(at(r, k)) * scale;
    return k + LANES <= num_keys ? some : only_lanes(some, 0, num_keys - k, -__builtin_inff());
  };
  for (long r = 0; r < num_rows; ++r) {
    Vector top = scaled(r, 0);
    for (long k = LANES; k < num_keys; k += LANES) top = larger(scaled(r, k), top);
    largest[r] = largest_lane(top);
  }
  for (long r = 0; r < num_rows; ++r) {
    Vector total = zeros();
    for (long k = 0; k < num_keys; k += LANES) {
      const Vector weights = exp(scaled(r, k) - largest[r]);
      store(at(r, k), weights);
      total = total + weights;
    }
    store(totals[r], total);
  }
  for (long r = 0; r < num_rows; ++r) {
    const float inverse = 1.0f / sum_of_lanes(load(totals[r]));
    for (long k = 0; k < num_keys; k += LANES) store_weights(patterns + r * stride + k, load(at(r, k)) * inverse);
  }
}

// Columns of `head` of mixed [num_queries][H][D] = softmax(scale q K^T) V of qkv [n][3][H][D], of the first queries.
template <class Form, class T>
void attend_text(const T* qkv, long num_rows, long num_queries, const TextHeads& heads, long head, T* mixed) {
  using Number = typename Form::Number;
  const long dim = heads.dim, width = heads.num_heads * dim, stride = 3 * width, steps_together = Form::INPUTS;
  const long key_steps = (dim + steps_together - 1) / steps_together, key_blocks = (num_rows + BLOCK - 1) / BLOCK;
  const long value_steps = (num_rows + steps_together - 1) / steps_together, value_blocks = (dim + BLOCK - 1) / BLOCK;
  const T* q = qkv + head * dim;
  Word* keys = scratch<LaidKeys, Word>(key_blocks * key_steps * BLOCK);
  Word* values = scratch<LaidValues, Word>(value_blocks * value_steps * BLOCK);
  lay_keys(q + width, stride, num_rows, dim, keys);
  lay_values(q + 2 * width, stride, num_rows, dim, values);
  float* scores = scratch<Scores, float>((key_blocks + 1) * PATTERN_ROWS * BLOCK);
  float* sums = scores + key_blocks * PATTERN_ROWS * BLOCK;
  const long pattern_stride = laid_stride<Form>(lanes_up(num_rows));
  Number* pattern = scratch<Patterns, Number>(PATTERN_ROWS * pattern_stride);
  if (pattern_stride > lanes_up(num_rows))
    for (long r = 0; r < PATTERN_ROWS; ++r)
      memset(pattern + r * pattern_stride + lanes_up(num_rows), 0, (pattern_stride - lanes_up(num_rows)) * sizeof(Number));
  const InUse<Form> in_use;
  for (long first = 0; first < num_queries; first += PATTERN_ROWS) {
    const long left = num_queries - first, count = left < PATTERN_ROWS ? left : PATTERN_ROWS, of_block = count * BLOCK;
    const Number* queries;
    long query_stride = stride;
    if constexpr (TAKES_ROWS<Form, T>) {
      queries = q + first * stride;
    } else {
      query_stride = laid_stride<Form>(dim);
      Number* laid = scratch<LaidQueries, Number>(PATTERN_ROWS * query_stride);
      for (long r = 0; r < count; ++r) lay_row<Form>(q + (first + r) * stride, dim, laid + r * query_stride);
      queries = laid;
    }
    for (long block = 0; block < key_blocks; ++block)
      sum_columns<Form>(queries, query_stride, count, keys + block * key_steps * BLOCK, dim,
                        num_rows - block * BLOCK < BLOCK ? num_rows - block * BLOCK : BLOCK, scores + block * of_block);
    make_patterns(scores, count, num_rows, heads.scale, pattern, pattern_stride);
    for (long block = 0; block < value_blocks; ++block) {
      const long columns = dim - block * BLOCK < BLOCK ? dim - block * BLOCK : BLOCK;
      sum_columns<Form>(pattern, pattern_stride, count, values + block * value_steps * BLOCK, num_rows, columns, sums);
      T* out = mixed + first * width + head * dim + block * BLOCK;
      for (long r = 0; r < count; ++r)
        each_number(columns, [&]<class N>(long j) {
          put(out + r * width + j, take<N>(sums + r * BLOCK + j));
        });
    }
  }
}

// The same for all heads of texts, which threads share.
template <class Form, class T>
void attend_texts(const T* qkv, T* mixed, const long* first_rows, long num_texts, const TextHeads& heads) {
  const long width = heads.num_heads * heads.dim;
  parallel(num_texts * heads.num_heads, [&](long i) {
    const long first = first_rows[i / heads.num_heads], count = first_rows[i / heads.num_heads + 1] - first;
    attend_text<Form>(qkv + first * 3 * width, count, count, heads, i % heads.num_heads, mixed + first * width);
  });
}

}  // namespace LEVEL
