// Exact sums of products of bytes: rows of digits times a block of a weight in int8. `int8.h` describes their layout.
#pragma once

#include "products/bytes.h"
#include "products/products.h"
#include "products/tiles.h"

namespace LEVEL {
namespace int8 {

constexpr long GROUP = 4;               // adjacent inputs
constexpr long HEADER = 2 * 4 * BLOCK;  // bytes of a block before its weights
constexpr long ROWS = 16;               // rows with sums that are computed together; their digits fill whole tiles
// Rows of digits, and registers of columns, with sums that stay in registers.
#if defined(__AVX512F__)
constexpr int PLACES = 6;
constexpr int registers_together(int) { return 4; }
#elif defined(__AVX2__)
constexpr int PLACES = 5;
constexpr int registers_together(int rows) { return rows <= 2 ? 4 : 2; }
#else
constexpr int PLACES = 4;
constexpr int registers_together(int) { return 4; }
#endif
constexpr long CACHED_INPUTS = 256;  // of a block that stay in the first cache while all rows pass: 16 KB

#if defined(TILES)
// The same function as below, with tiles: rows up to a multiple of 16 are read and written.
inline void sum_digits(const uint8_t* digits, long rows, long stride, const int8_t* block, long inputs, int32_t* sums) {
  sum_rows<true>(digits, stride, rows, block + 4 * BLOCK, block + HEADER, inputs, BLOCK, sums, [](long, long) {});
}
#else
#if defined(__AVX2__) && !defined(__AVX512F__)
// Rows of digits as pairs of 16 bits, for all columns of a block: of each four the first and the third, and the others.
struct Digits {
  static constexpr bool ARE_SPREAD = true;
  alignas(64) Word even[PLACES][CACHED_INPUTS / GROUP], odd[PLACES][CACHED_INPUTS / GROUP];

  Digits(const uint8_t* digits, long stride, long rows, long inputs) {
    for (long r = 0; r < rows; ++r)
      for (long i = 0; i < inputs / GROUP; i += WIDTH) {
        const Ints four = load_register(digits + r * stride + i * GROUP);
        store_register(even[r] + i, four & 0x00FF00FF);
        store_register(odd[r] + i, (four >> 8) & 0x00FF00FF);
      }
  }
  template <int C>
  struct Weights {
    Shorts even[C], odd[C];
    ALWAYS_INLINE void load(const int8_t* w, int c) {
      const Ints four = load_register(w + c * WIDTH * GROUP);
      even[c] = even_numbers(four), odd[c] = odd_numbers(four);
    }
  };
  template <int C>
  ALWAYS_INLINE void add(int r, long i, const Weights<C>& weights, Ints (&t)[C]) const {
    const Ints evens = Ints{} + int32_t(even[r][i]), odds = Ints{} + int32_t(odd[r][i]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) t[c] = add_pairs(t[c], evens, odds, weights.even[c], weights.odd[c]);
  }
};
#else
struct Digits {
  static constexpr bool ARE_SPREAD = false;
  const uint8_t* bytes;
  long stride;

  Digits(const uint8_t* digits, long stride, long, long) : bytes(digits), stride(stride) {}
  template <int C>
  struct Weights {
    Ints four[C];
    ALWAYS_INLINE void load(const int8_t* w, int c) { four[c] = load_register(w + c * WIDTH * GROUP); }
  };
  template <int C>
  ALWAYS_INLINE void add(int r, long i, const Weights<C>& weights, Ints (&t)[C]) const {
    int32_t four;
    memcpy(&four, bytes + r * stride + i * GROUP, sizeof four);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) t[c] = add_dots(t[c], Ints{} + four, weights.four[c]);
  }
};
#endif

// sums [R][64], of C registers of columns of them, += R rows of digits times `inputs` of a block w. Asks for `lines` of
// the four in each step of the weights `ahead` bytes further on.
template <int R, int C>
void add_products(const Digits& digits, const int8_t* w, long inputs, int32_t* sums, long ahead, long lines) {
  Ints t[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) t[r][c] = load_register(sums + r * BLOCK + c * WIDTH);
  for (long i = 0; i < inputs / GROUP; ++i, w += GROUP * BLOCK) {
    for (long line = 0; line < lines; ++line) __builtin_prefetch(w + ahead + line * LINE);
    Digits::Weights<C> weights;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) weights.load(w, c);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) digits.add(r, i, weights, t[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store_register(sums + r * BLOCK + c * WIDTH, t[r][c]);
}

template <int R = PLACES>
ALWAYS_INLINE void add_group(long rows, const Digits& digits, const int8_t* w, long inputs, int32_t* sums, long ahead,
                             long lines) {
  if (rows == R) {
    constexpr int C = registers_together(R);
    for (long n = 0; n < BLOCK; n += C * WIDTH)
      add_products<R, C>(digits, w + n * GROUP, inputs, sums + n, ahead, n == 0 ? lines : 0);
  } else if constexpr (R > 1) {
    add_group<R - 1>(rows, digits, w, inputs, sums, ahead, lines);
  }
}

// sums [rows][64] = rows of digits, `stride` apart, times a block of weights with `inputs` inputs, padded.
inline void sum_digits(const uint8_t* digits, long rows, long stride, const int8_t* block, long inputs, int32_t* sums) {
  for (long r = 0; r < rows; ++r) memcpy(sums + r * BLOCK, block + 4 * BLOCK, 4 * BLOCK);
  const int8_t* w = block + HEADER;
  const long groups = (rows + PLACES - 1) / PLACES;
  const long most = groups == 1 && !Digits::ARE_SPREAD ? inputs : CACHED_INPUTS;
  for (long k = 0; k < inputs; k += most) {
    const long count = inputs - k < most ? inputs - k : most;
    const int8_t* at = w + k * BLOCK;
    for (long g = 0; g < groups; ++g) {
      const long r = g * rows / groups, end = (g + 1) * rows / groups, line = g * 4 / groups;
      add_group(end - r, Digits(digits + r * stride + k, stride, end - r, count), at, count, sums + r * BLOCK,
                (groups == 1 ? AHEAD : CACHED_INPUTS * BLOCK) + line * LINE, (g + 1) * 4 / groups - line);
    }
  }
}
#endif

}  // namespace int8
}  // namespace LEVEL
