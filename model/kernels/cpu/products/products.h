// Sums of products of rows with blocks of 64 columns of a weight: for whole products and for steps that fuse them.
//
// A weight [N, K] is stored in blocks of 64 outputs, the last one padded with zeros: float32 as [blocks][K][64],
// bfloat16 as [blocks][ceil(K / 2)][64][2], pairs of adjacent inputs. Both are [blocks][steps][64] words of 32 bits. A
// sum has one order: each CHAIN inputs are one chain over the steps from 0, and the chains are added in order. So its
// bits are independent of other rows, of threads, and of the division of the steps for the caches, which is at
// multiples of CHAIN. Its error grows with the lengths of two short chains instead of one long chain. (Tiles have
// another fixed order: see tiles.h.)
#pragma once

#include "products/blocks.h"
#include "products/bytes.h"
#include "functions.h"
#include "threads/scratch.h"
#include "products/tiles.h"

namespace LEVEL {

constexpr long LINES = 4;         // of a cache, in a step of a block
constexpr long FEW = 128;         // most rows for which memory is slower than the products
constexpr long FEW_STEPS = 64;    // of a pass of few rows: 16 KB, so that the next steps fit in the first cache too
constexpr long MANY_STEPS = 512;  // of a pass of many rows: 128 KB of the second cache
#if defined(__AVX512F__)
constexpr int ROWS_TOGETHER = 6;  // rows with sums that stay in registers: 24 of 32
constexpr int vectors_together(int) { return 4; }
#else
constexpr int ROWS_TOGETHER = 6;  // AVX2: 12 of 16; NEON: 24 of 32
constexpr int vectors_together(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif
// Whether a pass over some of a step's columns prefetches lines of the next steps in order, which the CPU's own
// prefetcher then continues. A pass over all columns prefetches some lines of each step, which is faster there.
constexpr bool IN_ORDER = vectors_together(ROWS_TOGETHER) * LANES < BLOCK;
#if defined(TILES)
constexpr long ROW_STEP = TILE_ROWS;  // rows are cut into pieces of work at multiples of it
#else
constexpr long ROW_STEP = ROWS_TOGETHER;
#endif

ALWAYS_INLINE Vector as_floats(const Word* w) { return load(reinterpret_cast<const float*>(w)); }
ALWAYS_INLINE Vector even_numbers(const Vector& pairs) {
  return each_part([&](int i) { return (Floats)((Words)pairs.part[i] << 16); });
}
ALWAYS_INLINE Vector odd_numbers(const Vector& pairs) {
  return each_part([&](int i) { return (Floats)((Words)pairs.part[i] & 0xFFFF0000); });
}

// sums[r][v] += x[r * stride] * weights[v]
template <int R, int V>
ALWAYS_INLINE void add_input(const float* x, long stride, const Vector (&weights)[V], Vector (&sums)[R][V]) {
  unrolled<R>([&](auto r) INLINED {
    const Vector number = all_lanes(x[r * stride]);
    unrolled<V>([&](auto v) INLINED { sums[r][v] = fma(number, weights[v], sums[r][v]); });
  });
}

// The forms of arithmetic. A step adds the next INPUTS of R rows from x on, `stride` apart, times a step of a block
// from w on; where the inputs end in the middle of a step, the last one is half a step.
struct Float {  // float32 weights, rows of float32
  using Number = float;
  static constexpr int INPUTS = 1;
  template <int R, int V>
  static ALWAYS_INLINE void step(const float* x, long stride, const Word* w, Vector (&sums)[R][V]) {
    Vector weights[V];
    unrolled<V>([&](auto v) { weights[v] = as_floats(w + v * LANES); });
    add_input(x, stride, weights, sums);
  }
  template <int R, int V>
  static ALWAYS_INLINE void half_step(const float*, long, const Word*, Vector (&)[R][V]) {}
};
struct Widened {  // bfloat16 weights, widened in registers, rows of float32
  using Number = float;
  static constexpr int INPUTS = 2;
  template <int R, int V>
  static ALWAYS_INLINE void step(const float* x, long stride, const Word* w, Vector (&sums)[R][V]) {
    half_step(x, stride, w, sums);
    Vector weights[V];
    unrolled<V>([&](auto v) { weights[v] = odd_numbers(as_floats(w + v * LANES)); });
    add_input(x + 1, stride, weights, sums);
  }
  template <int R, int V>
  static ALWAYS_INLINE void half_step(const float* x, long stride, const Word* w, Vector (&sums)[R][V]) {
    Vector weights[V];
    unrolled<V>([&](auto v) { weights[v] = even_numbers(as_floats(w + v * LANES)); });
    add_input(x, stride, weights, sums);
  }
};
#if defined(__AVX512BF16__)
struct Paired {  // bfloat16 weights times rows of bfloat16, two inputs at a time, as VDPBF16PS rounds
  using Number = bfloat16;
  static constexpr int INPUTS = 2;
  template <int R, int V>
  static ALWAYS_INLINE void add(const int32_t (&pairs)[R], const Word* w, Vector (&sums)[R][V]) {
    __m512bh weights[V];
    unrolled<V>([&](auto v) { weights[v] = (__m512bh)_mm512_loadu_si512(w + v * LANES); });
    add(pairs, weights, sums);
  }
  template <int R, int V>
  static ALWAYS_INLINE void add(const int32_t (&pairs)[R], const __m512bh (&weights)[V], Vector (&sums)[R][V]) {
    unrolled<R>([&](auto r) INLINED {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32(pairs[r]);
      unrolled<V>([&](auto v) INLINED {
        sums[r][v].part[0] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][v].part[0], pair, weights[v]);
      });
    });
  }
  template <int R, int V>
  static ALWAYS_INLINE void step(const bfloat16* x, long stride, const Word* w, Vector (&sums)[R][V]) {
    int32_t pairs[R];
    unrolled<R>([&](auto r) { memcpy(&pairs[r], x + r * stride, sizeof pairs[r]); });
    add(pairs, w, sums);
  }
  template <int R, int V>
  static ALWAYS_INLINE void half_step(const bfloat16* x, long stride, const Word* w, Vector (&sums)[R][V]) {
    int32_t pairs[R];
    unrolled<R>([&](auto r) { pairs[r] = x[r * stride]; });
    add(pairs, w, sums);
  }
};
#endif
struct Tiled {  // the same by tiles, which take any number of rows: it has no steps, but `sum_rows` of tiles.h
  using Number = bfloat16;
  static constexpr int INPUTS = 2;
};

// The form that multiplies bfloat16 by bfloat16 at this level, possibly with other bits than other levels.
#if defined(TILES)
using Dot = Tiled;
#elif defined(__AVX512BF16__)
using Dot = Paired;
#else
using Dot = Widened;
#endif

constexpr bool HAS_DOT = !__is_same(Dot, Widened);

// Whether a form multiplies rows of T in place. Otherwise `lay_row` must convert them to its layout, `laid_stride`
// numbers apart, and memory is read up to `lanes_up` rows.
template <class Form, class T>
constexpr bool TAKES_ROWS = __is_same(typename Form::Number, T) && !__is_same(Form, Tiled);
template <class Form>
constexpr long laid_stride(long K) {
  constexpr long INPUTS = LINE / long(sizeof(bfloat16));
  if (__is_same(Form, Bytes)) return Bytes::row_bytes(K);
  if (!__is_same(Form, Tiled)) return K;
  return ((K + INPUTS - 1) / INPUTS | 1) * INPUTS;  // an odd number of lines: rows do not displace each other in a cache
}
template <class Form, class T>
void lay_row(const T* x, long K, typename Form::Number* laid) {
  if constexpr (__is_same(Form, Bytes)) {
    round_row(x, K, laid);
  } else if constexpr (__is_same(typename Form::Number, T)) {
    memcpy(laid, x, K * sizeof(T));
    memset(laid + K, 0, (laid_stride<Form>(K) - K) * sizeof(T));
  } else {
    const long whole = lanes_down(K);
    for (long i = 0; i < whole; i += LANES) store(laid + i, load(x + i));
    for (long i = whole; i < K; ++i) laid[i] = widen(x[i]);
  }
}

// While one lives this thread can make sums by the form: where that takes tiles, they are in use.
template <class Form>
struct InUse {
  InUse() {
    if constexpr (__is_same(Form, Tiled)) take_tiles();
  }
  ~InUse() {
    if constexpr (__is_same(Form, Tiled)) give_up_tiles();
  }
};

// sums [R][64] += t, or = t, which begins them
template <int R, int V>
ALWAYS_INLINE void put_sums(const Vector (&t)[R][V], bool begins, float* sums) {
  unrolled<R>([&](auto r) INLINED {
    unrolled<V>([&](auto v) INLINED {
      float* to = sums + r * BLOCK + v * LANES;
      store(to, begins ? t[r][v] : load(to) + t[r][v]);
    });
  });
}

// Adds to sums [R][64], or begins them, V vectors of columns of them, `inputs` of rows x, `stride` apart, times w
// [steps][64], by chains of `chain` inputs, an even number. Meanwhile it prefetches the first FETCHED lines of each
// step from `next`.
template <class Form, int R, int V, int FETCHED>
void add_chains(const typename Form::Number* x, long stride, const Word* w, long inputs, long chain, const Word* next,
                bool begins, float* sums) {
  do {
    const long some = inputs < chain ? inputs : chain;
    Vector t[R][V];
    unrolled<R>([&](auto r) { unrolled<V>([&](auto v) { t[r][v] = zeros(); }); });
    const auto* end = x + some / Form::INPUTS * Form::INPUTS;
    for (; x < end; x += Form::INPUTS, w += BLOCK, next += IN_ORDER ? FETCHED * LANES : BLOCK) {
      for (int i = 0; i < FETCHED; ++i) __builtin_prefetch(next + i * LANES);
      Form::step(x, stride, w, t);
    }
    if (some % Form::INPUTS) Form::half_step(x, stride, w, t);
    put_sums(t, begins, sums);
    begins = false;
    inputs -= some;
  } while (inputs > 0);
}

// The same for 1 <= rows <= R, and 0, 1, 2 or 4 lines.
template <class Form, int R = ROWS_TOGETHER>
void add_rows(long rows, const typename Form::Number* x, long stride, const Word* w, long inputs, long chain,
              long fetched, const Word* next, bool begins, float* sums) {
  if constexpr (R > 1)
    if (rows < R) return add_rows<Form, R - 1>(rows, x, stride, w, inputs, chain, fetched, next, begins, sums);
  constexpr int V = vectors_together(R);
  const auto add = fetched == 0   ? add_chains<Form, R, V, 0>
                   : fetched == 1 ? add_chains<Form, R, V, 1>
                   : fetched == 2 ? add_chains<Form, R, V, 2>
                                  : add_chains<Form, R, V, 4>;
  add(x, stride, w, inputs, chain, next, begins, sums);
}

// Compiled once, in chains.cpp.
template <class Form>
using AddRows = void(long, const typename Form::Number*, long, const Word*, long, long, long, const Word*, bool, float*);
extern template AddRows<Float> add_rows<Float>;
extern template AddRows<Widened> add_rows<Widened>;
#if defined(__AVX512BF16__)
extern template AddRows<Paired> add_rows<Paired>;
#endif

// Adds to sums [num_rows][64], or begins them, `inputs` of rows x, `stride` apart, times w [steps][64], by chains of
// `chain` inputs. Each pass multiplies some rows, and prefetches a share of the first `lines` of each step from `next`,
// so that memory is always in use. finish(first, count): as in `sum_block`, called if `is_last`.
template <class Form, class F>
ALWAYS_INLINE void pass_rows(const typename Form::Number* x, long stride, long num_rows, const Word* w, long inputs,
                             long chain, const Word* next, long lines, bool begins, bool is_last, float* sums, F finish) {
  const long groups = (num_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  long asked = 0;
  for (long group = 0; group < groups; ++group) {
    const long r = group * num_rows / groups, rows = (group + 1) * num_rows / groups - r;
    const long columns = vectors_together(rows) * LANES, passes = groups * (BLOCK / columns);
    for (long column = 0; column < BLOCK; column += columns) {
      const long left = lines - asked, share = passes == 1 ? LINES : passes <= 3 ? 2 : 1;
      const long fetched = share < left ? share : left;
      add_rows<Form>(rows, x + r * stride, stride, w + column, inputs, chain, fetched,
                     next + asked * LANES * (IN_ORDER ? inputs / Form::INPUTS : 1), begins, sums + r * BLOCK + column);
      asked += fetched;
    }
    if (is_last) finish(r, rows);
  }
}

// sums [num_rows][64] = rows x [num_rows][K], `stride` apart, times the block w; rows are in the form's layout,
// and sums have room for `lanes_up` rows. finish(first, count) is called as soon as some rows are complete, so that its
// writes go to memory while other rows are computed.
template <class Form, class F>
void sum_block(const typename Form::Number* x, long stride, long num_rows, const Word* w, long K, float* sums,
               F finish) requires(!__is_same(Form, Tiled)) {
  constexpr bool WIDENS = __is_same(Form, Widened);
  const bool once = num_rows <= ROWS_TOGETHER && vectors_together(num_rows) * LANES == BLOCK, few = num_rows <= FEW;
  constexpr long STEPS = CHAIN / Form::INPUTS;
  const long num_steps = (K + Form::INPUTS - 1) / Form::INPUTS, num_chains = (num_steps + STEPS - 1) / STEPS;
  const long most = (few ? FEW_STEPS : MANY_STEPS / (WIDENS ? 2 : 1)) / STEPS;
  const long num_pieces = once || num_steps == 0 ? 1 : (num_chains + most - 1) / most;
  for (long piece = 0; piece < num_pieces; ++piece) {
    const bool is_last = piece + 1 == num_pieces;
    const long first = piece * num_chains / num_pieces * STEPS;
    const long end = is_last ? num_steps : (piece + 1) * num_chains / num_pieces * STEPS;
    const long k = first * Form::INPUTS, inputs = (is_last ? K : end * Form::INPUTS) - k;
    const Word *at = w + first * BLOCK, *next = once ? w + AHEAD / sizeof *w : w + end * BLOCK;
    if constexpr (WIDENS) {
      if (!few) {  // widened once for all rows
        float* wide = scratch<Widened, float>(2 * (end - first) * BLOCK);
        for (long i = 0; i < (end - first) * BLOCK; i += LANES) {
          float* to = wide + i / BLOCK * 2 * BLOCK + i % BLOCK;
          const Vector pairs = as_floats(at + i);
          store(to, even_numbers(pairs));
          store(to + BLOCK, odd_numbers(pairs));
        }
        const Word* words = reinterpret_cast<const Word*>(wide);
        pass_rows<Float>(x + k, stride, num_rows, words, inputs, CHAIN, next, LINES, first == 0, is_last, sums, finish);
        continue;
      }
    }
    pass_rows<Form>(x + k, stride, num_rows, at, inputs, CHAIN, next, LINES, first == 0, is_last, sums, finish);
  }
}

#if defined(TILES)
// The same of the block's first `columns`, by tiles.
template <class F>
ALWAYS_INLINE void sum_by_tiles(const bfloat16* x, long stride, long num_rows, const Word* w, long K, long columns,
                                float* sums, F finish) {
  alignas(64) static constexpr float ZEROS[BLOCK] = {};
  constexpr long BYTES = sizeof(bfloat16);
  sum_rows<false>(x, stride * BYTES, num_rows, ZEROS, w, K * BYTES, columns, sums, finish);
}
template <class Form, class F>
void sum_block(const bfloat16* x, long stride, long num_rows, const Word* w, long K, float* sums, F finish)
    requires(__is_same(Form, Tiled)) {
  sum_by_tiles(x, stride, num_rows, w, K, BLOCK, sums, finish);
}
#endif

// out [num_rows], `stride` apart, of the block's `count` columns = activation(sums [num_rows][64] + bias), rounded
// once. bias and out begin at the block's first column; bias may be null.
template <class T>
void store_block(const float* sums, long num_rows, long count, const T* bias, long activation, T* out, long stride) {
  const long whole = lanes_down(count);
  for (long r = 0; r < num_rows; ++r, sums += BLOCK, out += stride) {
    for (long j = 0; j < whole; j += LANES) {
      Vector y = load(sums + j);
      if (bias) y = y + load(bias + j);
      store(out + j, activate(y, activation));
    }
    for (long j = whole; j < count; ++j)
      store_one(out + j, activate(bias ? sums[j] + widen(bias[j]) : sums[j], activation));
  }
}

}  // namespace LEVEL
