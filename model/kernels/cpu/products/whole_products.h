// Whole products of rows with a weight, and the packing of a weight (see products.h).
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "threads/pool.h"
#include "products/products.h"

namespace LEVEL {

constexpr long MOST_ROWS = 192;  // in one piece of work: a multiple of ROW_STEP

// Users of scratch.
struct ProductSums {};
struct LaidRows {};

// How rows and blocks of columns are cut into pieces of work.
struct Cuts {
  long num_rows, num_blocks, row_parts, column_parts;

  Cuts(long rows, long outputs) : num_rows(rows), num_blocks((outputs + BLOCK - 1) / BLOCK) {
    const long threads = lightwell_num_threads();
    column_parts = num_blocks < threads ? num_blocks : threads;
    row_parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    // A thread that is held up leaves its rest to others, where pieces are long enough to begin another.
    if (row_parts == 1 && num_blocks >= 32 * threads) column_parts *= 4;
    // Too few columns for all threads: they share rows.
    const long wanted = column_parts ? (threads + column_parts - 1) / column_parts : 0;
    const long most = (rows + 2 * ROW_STEP - 1) / (2 * ROW_STEP);
    if (row_parts < wanted) row_parts = wanted < most ? wanted : most;
  }
  long num_parts() const { return row_parts * column_parts; }
  // The first row of a part, at a multiple of ROW_STEP but for the last.
  long row(long part) const {
    const long groups = (num_rows + ROW_STEP - 1) / ROW_STEP;
    return part == row_parts ? num_rows : part * groups / row_parts * ROW_STEP;
  }
  long block(long part) const { return part * num_blocks / column_parts; }
};

// Rows [count][K] as a form of arithmetic takes them: as they are, or laid in this thread's scratch.
template <class Form, class T>
ALWAYS_INLINE const typename Form::Number* rows_for(const T* x, long count, long K) {
  if constexpr (TAKES_ROWS<Form, T>) {
    return x;
  } else {
    const long stride = laid_stride<Form>(K);
    auto* laid = scratch<LaidRows, typename Form::Number>(lanes_up(count) * stride);
    for (long r = 0; r < count; ++r) lay_row<Form>(x + r * K, K, laid + r * stride);
    return laid;
  }
}

// Rows [count][K] as bytes, or null for other forms: to round them takes so long that all threads share it, once.
template <class Form, class T>
const typename Form::Number* rounded_rows(const T* x, long count, long K) {
  if constexpr (!__is_same(Form, Bytes)) {
    return nullptr;
  } else {
    constexpr long SHARED_FROM = 8;  // rows: fewer are rounded sooner than other threads would join in
    const long stride = laid_stride<Bytes>(K);
    int8_t* rows = scratch<Bytes, int8_t>(count * stride);
    parallel_shares(count, SHARED_FROM, [&](long begin, long end) {
      for (long r = begin; r < end; ++r) round_row(x + r * K, K, rows + r * stride);
    });
    return rows;
  }
}

// out [num_rows][N] = activation(x [num_rows][K] times a weight + bias [N] or null), rounded once. sums_of(rows, count)
// is called once for some rows in the form's layout, and returns a function (block, sums, finish) that computes their
// sums with a block of the weight like `sum_block`.
template <class Form, class T, class S>
void multiply_by(const T* x, const T* bias, T* out, long num_rows, long K, long N, long activation, S sums_of) {
  if (num_rows == 0 || N == 0) return;
  const Cuts cuts(num_rows, N);
  const auto* rounded = rounded_rows<Form>(x, num_rows, K);
  parallel(cuts.num_parts(), [&](long part) {
    const long row_part = part % cuts.row_parts, column_part = part / cuts.row_parts;
    const long first = cuts.row(row_part), count = cuts.row(row_part + 1) - first;
    const auto* rows = rounded ? rounded + first * laid_stride<Form>(K) : rows_for<Form>(x + first * K, count, K);
    const auto make_sums = sums_of(rows, count);
    float* sums = scratch<ProductSums, float>(lanes_up(count) * BLOCK);
    const InUse<Form> in_use;
    for (long block = cuts.block(column_part); block < cuts.block(column_part + 1); ++block) {
      const long column = block * BLOCK, width = N - column < BLOCK ? N - column : BLOCK;
      make_sums(block, sums, [&](long r, long num) {
        store_block(sums + r * BLOCK, num, width, bias ? bias + column : nullptr, activation,
                    out + (first + r) * N + column, N);
      });
    }
  });
}

// The same with a weight w in the form's own layout.
template <class Form>
auto sums_of_words(const Word* w, long K) {
  const long block_words = (K + Form::INPUTS - 1) / Form::INPUTS * BLOCK;
  return [=](const typename Form::Number* rows, long count) {
    return [=](long block, float* sums, auto finish) {
      sum_block<Form>(rows, laid_stride<Form>(K), count, w + block * block_words, K, sums, finish);
    };
  };
}
template <class Form, class T>
void multiply(const T* x, const Word* w, const T* bias, T* out, long num_rows, long K, long N, long activation) {
  multiply_by<Form>(x, bias, out, num_rows, K, N, activation, sums_of_words<Form>(w, K));
}

// The same from a weight [N][K] as it is, number by number: what `multiply` must give but for Paired and Tiled.
template <class T, class W>
void multiply_plainly(const T* x, const W* weight, const T* bias, T* out, long num_rows, long K, long N,
                      long activation) {
  for (long r = 0; r < num_rows; ++r)
    for (long n = 0; n < N; ++n) {
      float sum = 0;
      for (long first = 0; first < K; first += CHAIN) {
        float chain = 0;
        for (long k = first; k < first + CHAIN && k < K; ++k)
          chain = fma(widen(x[r * K + k]), widen(weight[n * K + k]), chain);
        sum = sum + chain;
      }
      if (bias) sum = sum + widen(bias[n]);
      store_one(out + r * N + n, activate(sum, activation));
    }
}

// Asks the system for large pages for memory not yet written: weights are read from end to end, which takes a tenth to
// a fifth longer where every 4 KB need an address of their own. Only pages inside, so that no more memory is taken.
inline void prefer_large_pages(void* memory, size_t num_bytes) {
#if defined(__linux__)
  constexpr uintptr_t LARGE = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + LARGE - 1) / LARGE * LARGE;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + num_bytes) / LARGE * LARGE;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // it may say no
#else
  (void)memory, (void)num_bytes;
#endif
}

// packed [blocks][steps][64] words = weight [N][K], filled up with zeros; 4 / sizeof(T) inputs in a word.
template <class T>
void pack(const T* weight, Word* packed, long K, long N) {
  constexpr long TOGETHER = sizeof(Word) / sizeof(T), STEPS = 64 / sizeof(Word);  // a line of the weight at a time
  const long num_steps = (K + TOGETHER - 1) / TOGETHER, num_blocks = (N + BLOCK - 1) / BLOCK;
  if (K == 0) return;
  prefer_large_pages(packed, num_blocks * num_steps * BLOCK * sizeof *packed);
  parallel(num_blocks, [&](long block) {
    Word* to = packed + block * num_steps * BLOCK;
    const long width = N - block * BLOCK < BLOCK ? N - block * BLOCK : BLOCK;
    memset(to, 0, num_steps * BLOCK * sizeof *to);
    for (long first = 0; first < num_steps; first += STEPS)
      for (long j = 0; j < width; ++j) {
        const T* row = weight + (block * BLOCK + j) * K;
        for (long s = first; s < first + STEPS && s < num_steps; ++s) {
          const long left = K - s * TOGETHER;
          memcpy(to + s * BLOCK + j, row + s * TOGETHER, left < TOGETHER ? sizeof(T) : sizeof(Word));
        }
      }
  });
}

// weight [N][K] = what `pack` was given
template <class T>
void unpack(const Word* packed, T* weight, long K, long N) {
  constexpr long TOGETHER = sizeof(Word) / sizeof(T), STEPS = 64 / sizeof(Word);
  const long num_steps = (K + TOGETHER - 1) / TOGETHER;
  parallel((N + BLOCK - 1) / BLOCK, [&](long block) {
    const Word* from = packed + block * num_steps * BLOCK;
    const long width = N - block * BLOCK < BLOCK ? N - block * BLOCK : BLOCK;
    for (long first = 0; first < num_steps; first += STEPS)
      for (long j = 0; j < width; ++j) {
        T* row = weight + (block * BLOCK + j) * K;
        for (long s = first; s < first + STEPS && s < num_steps; ++s) {
          const long left = K - s * TOGETHER;
          memcpy(row + s * TOGETHER, from + s * BLOCK + j, left < TOGETHER ? sizeof(T) : sizeof(Word));
        }
      }
  });
}

}  // namespace LEVEL
