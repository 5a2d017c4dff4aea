// Sums of products of rows with blocks of weights in groups of inputs that share scales (see grouped.h).
#pragma once

#include "products/grouped.h"

namespace LEVEL {
namespace grouped {

constexpr long FEW_INPUTS = 128;   // of a pass of few rows: 16 or 32 KB of expanded numbers
constexpr long MANY_INPUTS = 512;  // of a pass of many rows
#if defined(__AVX512F__)
constexpr long FUSED_ROWS = ROWS_TOGETHER;  // most rows for which numbers stay in registers
#else
constexpr long FUSED_ROWS = FEW;            // for which numbers are expanded between the products
#endif

#if defined(__AVX512BF16__)
template <class Form>
constexpr bool SUMS_FIRST = __is_same(Form, Paired);
#else
template <class Form>
constexpr bool SUMS_FIRST = false;
#endif

// Rows x [count], `stride` apart, as a form takes them; for Paired with the sums of their numbers, of 16 each, by which
// mins are multiplied.
template <class Form>
struct Rows {
  const typename Form::Number* x;
  long stride, count;
  const float* sums = nullptr;  // [count][K / 16]

  Rows(const typename Form::Number* x, long stride, long count, long K) : x(x), stride(stride), count(count) {
    if constexpr (SUMS_FIRST<Form>) {
      float* of_rows = scratch<Rows, float>(count * (K / LANES));
      sums = of_rows;
      for (long r = 0; r < count; ++r)
        for (long k = 0; k < K; k += LANES) *of_rows++ = sum_of_lanes(load(x + r * stride + k));
    }
  }
};

// sums [rows][64] = rows times a block, each compiled once, in grouped_sums.cpp: of rows rounded to bytes, of pairs of
// bfloat16, and of at most FUSED_ROWS rows of float32.
void sum_bytes(const Rows<Bytes>& rows, const uint8_t* block, long K, float* sums);
#if defined(__AVX512BF16__)
void sum_pairs(const Rows<Paired>& rows, const uint8_t* block, long K, float* sums);
#endif
void sum_floats(const Rows<Float>& rows, const uint8_t* block, long K, float* sums);

// sums [rows][64] = rows, as the form takes them, times a block; `finish` as `sum_block` says.
template <class Form, class F>
void sum_grouped(const Rows<Form>& rows, const uint8_t* block, long K, float* sums, F finish) {
  const Grouping all = grouping_of(block);
  if constexpr (__is_same(Form, Bytes)) {
    sum_bytes(rows, block, K, sums);
    finish(0, rows.count);
  } else if constexpr (__is_same(Form, Tiled)) {
#if defined(TILES)
    Word* written = scratch<Grouping, Word>(K / Form::INPUTS * BLOCK);
    write_out(block, 0, K / all.group, written);
    sum_block<Tiled>(rows.x, rows.stride, rows.count, written, K, sums, finish);
#endif
#if defined(__AVX512BF16__)
  } else if constexpr (__is_same(Form, Paired)) {
    sum_pairs(rows, block, K, sums);
    finish(0, rows.count);
#endif
  } else if (rows.count <= FUSED_ROWS) {
    sum_floats(rows, block, K, sums);
    finish(0, rows.count);
  } else {
    const long some = rows.count <= FEW ? FEW_INPUTS : MANY_INPUTS;
    float* written = scratch<Grouping, float>(MANY_INPUTS * BLOCK);
    for (long k = 0; k < K; k += some) {
      const long inputs = K - k < some ? K - k : some;
      write_out(block, k / all.group, (k + inputs) / all.group, written);
      pass_rows<Form>(rows.x + k, rows.stride, rows.count, reinterpret_cast<const Word*>(written), inputs, CHAIN,
                      nullptr, 0, k == 0, k + inputs == K, sums, finish);
    }
  }
}

// Calls use(form) with the form of arithmetic that multiplies rows of T.
template <class T, class F>
ALWAYS_INLINE auto with_form(long arithmetic, F use) {
  if (arithmetic == 2) return use(Bytes{});
  if constexpr (HAS_DOT && sizeof(T) < sizeof(float))
    if (arithmetic == 1) return use(Dot{});
  return use(Float{});
}

// The function `sums_of` for `multiply_by`, which computes sums of rows with a block of the weight.
template <class Form>
auto sums_of_grouped(const void* w, long K) {
  return [=](const typename Form::Number* x, long count) {
    const Rows<Form> rows(x, laid_stride<Form>(K), count, K);
    return [=](long block, float* sums, auto finish) { sum_grouped(rows, block_at(w, block), K, sums, finish); };
  };
}

}  // namespace grouped
}  // namespace LEVEL
