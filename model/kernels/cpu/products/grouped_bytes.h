// Sums of products of rows rounded to bytes with blocks of weights in groups of inputs that share scales (see bytes.h
// and grouped.h). Sums within a scale are sums of integers, so every level of CPU gives the same bits.
//
// The bytes of a weight are multiplied as unsigned numbers, as x86 requires: value - least value >= 0. The excess is
// subtracted with the sum of the row's numbers.
#pragma once

#include "products/grouped.h"

namespace LEVEL {
namespace grouped {

constexpr long KEPT_INPUTS = 256;  // of a block with bytes that are looked up once for all rows: 16 KB

// Calls use(Index<rows>()), for 1 <= rows <= R.
template <int R = ROWS_TOGETHER, class F>
ALWAYS_INLINE void with_rows(long rows, F use) {
  if constexpr (R > 1)
    if (rows < R) return with_rows<R - 1>(rows, use);
  use(Index<R>());
}

// Calls pass(first, Index<count>()) for groups of rows that fit in registers.
template <class F>
ALWAYS_INLINE void each_pass(long rows, F pass) {
  const long passes = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  for (long i = 0; i < passes; ++i) {
    const long first = i * rows / passes;
    with_rows((i + 1) * rows / passes - first, [&](auto count) { pass(first, count); });
  }
}

// The least value of a grouping's codes, 0 where all are above.
ALWAYS_INLINE int least_value(const Grouping& all) {
  if (all.bits == 8) return -128;
  int least = 0;
  for (const int value : all.values) least = value < least ? value : least;
  return least;
}
inline bool has_small_values(const Grouping& all) {
  if (!HAS_SMALL_DOTS || all.bits == 8) return false;
  for (const int value : all.values)
    if (value - least_value(all) > MOST_SMALL) return false;
  return true;
}

// The 16 values of codes of 4 bits minus the least value, so that none is below 0.
struct ByteTable {
#if defined(__AVX512F__)
  __m512i values;
#elif defined(__AVX2__)
  __m256i values;
#else
  uint8x16_t values;
#endif
  explicit ByteTable(const Grouping& all) {
    uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(all.values[i] - least_value(all));
#if defined(__AVX512F__)
    values = _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#else
    values = vld1q_u8(bytes);
#endif
  }
};

// Bytes of four inputs side by side of WIDTH outputs, from codes of 8 bits of each input of an octet: inputs FIRST,
// FIRST + 4, FIRST + 1 and FIRST + 5.
template <int FIRST>
ALWAYS_INLINE Ints side_by_side(const uint8_t* codes) {
  const uint8_t *a = codes + FIRST * BLOCK, *b = a + 4 * BLOCK, *c = a + BLOCK, *d = a + 5 * BLOCK;
#if defined(__AVX512F__)
  const auto line = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  __m512i rows = _mm512_maskz_inserti32x4(0xFFFF, _mm512_zextsi128_si512(line(a)), line(b), 1);
  rows = _mm512_maskz_inserti32x4(0xFFFF, _mm512_maskz_inserti32x4(0xFFFF, rows, line(c), 2), line(d), 3);
  // Four outputs of each input to a quarter, and there a byte of each input to an output.
  const __m512i quarters = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i bytes = _mm512_maskz_broadcast_i32x4(
      0xFFFF, _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  return (Ints)_mm512_maskz_shuffle_epi8(~__mmask64(0), _mm512_maskz_permutexvar_epi32(0xFFFF, quarters, rows), bytes);
#elif defined(__AVX2__)
  const auto eight = [](const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); };
  const __m128i first = _mm_unpacklo_epi8(eight(a), eight(b)), last = _mm_unpacklo_epi8(eight(c), eight(d));
  return (Ints)_mm256_set_m128i(_mm_unpackhi_epi16(first, last), _mm_unpacklo_epi16(first, last));
#else
  Words rows;
  const uint8_t* const of_inputs[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    uint32_t four;
    memcpy(&four, of_inputs[i], sizeof four);
    rows[i] = four;
  }
  const uint8x16_t bytes = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return (Ints)vqtbl1q_u8((uint8x16_t)rows, bytes);
#endif
}

// Bytes of four inputs of 16 outputs, vector v of a block's: an octet's inputs 0, 4, 1, 5 or, if HALF, 2, 6, 3, 7.
template <int BITS, int HALF>
ALWAYS_INLINE IntVector bytes_of(const uint8_t* octet, int v, const ByteTable& table) {
  return each_part<IntVector>([&](int i) {
    if constexpr (BITS == 8) {
      return (Ints)((Words)side_by_side<2 * HALF>(octet + v * LANES + i * WIDTH) ^ 0x80808080);
    } else {
      const Words codes = (Words)load_register(octet + v * LINE + i * sizeof(Ints));
      const Words chosen = (HALF ? codes >> 4 : codes) & 0x0F0F0F0F;
#if defined(__AVX512F__)
      return (Ints)_mm512_maskz_shuffle_epi8(~__mmask64(0), table.values, (__m512i)chosen);
#elif defined(__AVX2__)
      return (Ints)_mm256_shuffle_epi8(table.values, (__m256i)chosen);
#else
      return (Ints)vqtbl1q_u8(table.values, (uint8x16_t)chosen);
#endif
    }
  });
}

// Rows as bytes.h has them, `stride` apart.
struct ByteRows {
  const int8_t* numbers;
  long stride, count, num_inputs;

  const int8_t* row(long r, long input) const { return numbers + r * stride + input; }
  float scale(long r, long input) const {
    return reinterpret_cast<const float*>(numbers + r * stride + Bytes::scales_at(num_inputs))[input / SCALED_INPUTS];
  }
  int32_t sum(long r, long input) const {  // of SUMMED_INPUTS
    return reinterpret_cast<const int32_t*>(numbers + r * stride + Bytes::sums_at(num_inputs))[input / SUMMED_INPUTS];
  }
};

// Goes on with the sums [R][64] of rows from `first` on, or begins them, by some inputs of one group, at most
// SCALED_INPUTS. weights(octet, half, v) gives the bytes of half an octet of them. ARE_SMALL: see `has_small_values`.
template <int R, bool ARE_SMALL, class W>
ALWAYS_INLINE void add_bytes(const ByteRows& rows, long first, long input, long count, bool has_min, int least,
                             const Group& group, W weights, float* sums) {
  constexpr int COLUMNS = vectors_together(R);
  const int8_t* x[R];
  float scales[R], of_row[R];
  int32_t starts[R];
  unrolled<R>([&](auto r) {
    x[r] = rows.row(first + r, input);
    int32_t sum = rows.sum(first + r, input);
    if (count > SUMMED_INPUTS) sum += rows.sum(first + r, input + SUMMED_INPUTS);
    scales[r] = rows.scale(first + r, input);
    starts[r] = least * sum;
    of_row[r] = scales[r] * float(sum);
  });
  for (int first_vector = 0; first_vector < VECTORS; first_vector += COLUMNS) {
    IntVector t[R][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < COLUMNS; ++c)
        t[r][c] = each_part<IntVector>([&](int) { return Ints{} + (ARE_SMALL ? 0 : starts[r]); });
    for (long octet = 0; octet < count / OCTET; ++octet)
      unrolled<2>([&](auto half) INLINED {
        IntVector bytes[COLUMNS];
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; ++c) bytes[c] = weights(octet, half, first_vector + c);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t four;
          memcpy(&four, x[r] + octet * OCTET + half * 4, sizeof four);
#pragma GCC unroll 8
          for (int c = 0; c < COLUMNS; ++c)
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; ++i) {
              Ints& sum = t[r][c].part[i];
              if constexpr (ARE_SMALL) sum = add_small_dots(sum, bytes[c].part[i], Ints{} + four);
              else sum = add_dots(sum, bytes[c].part[i], Ints{} + four);
            }
        }
      });
    unrolled<R>([&](auto r) {
      unrolled<COLUMNS>([&](auto c) {
        const int v = first_vector + c;
        float* to = sums + (first + r) * BLOCK + v * LANES;
        const Vector products = each_part([&](int i) {
          const Ints sum = t[r][c].part[i];
          return __builtin_convertvector(ARE_SMALL ? sum_of_pairs(sum) + starts[r] : sum, Floats);
        });
        Vector sum = input == 0 ? zeros() : load(to);
        if (has_min) sum = fma(group.mins[v], of_row[r], sum);
        store(to, fma(group.scales[v], products * scales[r], sum));
      });
    });
  }
}

// sums [rows][64] = rows times a block.
template <int BITS, bool ARE_SMALL>
void sum_of_bytes(const ByteRows& rows, const uint8_t* block, const Grouping& all, float* sums) {
  const ByteTable table(all);
  const int least = least_value(all);
  const long K = rows.num_inputs, some = all.group < SCALED_INPUTS ? all.group : SCALED_INPUTS;
  const auto look_up = [&](const uint8_t* octet, auto half, int v) {
    if (half == 0) __builtin_prefetch(octet + AHEAD + v * LINE);
    else if (BITS == 8) __builtin_prefetch(octet + AHEAD + (VECTORS + v) * LINE);
    return bytes_of<BITS, half>(octet, v, table);
  };
  if (rows.count <= 2 * ROWS_TOGETHER) {
    for (long k = 0; k < K; k += all.group) {
      Group group;
      read_group(block, all, k / all.group, group);
      each_pass(rows.count, [&](long r, auto num) {
        for (long i = 0; i < all.group; i += some) {
          const uint8_t* at = group.codes + i / OCTET * octet_bytes(BITS);
          add_bytes<num, ARE_SMALL>(
              rows, r, k + i, some, all.has_min, least, group,
              [&](long octet, auto half, int v) { return look_up(at + octet * octet_bytes(BITS), half, v); }, sums);
        }
      });
    }
    return;
  }
  alignas(64) Word kept[KEPT_INPUTS / 4 * BLOCK];  // [inputs / 4][64]
  Group groups[KEPT_INPUTS / SUMMED_INPUTS];
  for (long begin = 0; begin < K; begin += KEPT_INPUTS) {
    const long inputs = K - begin < KEPT_INPUTS ? K - begin : KEPT_INPUTS, num_groups = inputs / all.group;
    for (long g = 0; g < num_groups; ++g) {
      read_group(block, all, begin / all.group + g, groups[g]);
      Word* to = kept + g * all.group / 4 * BLOCK;
      for (long k = 0; k < all.group; k += OCTET)
        unrolled<2>([&](auto half) {
          for (int v = 0; v < VECTORS; ++v, to += LANES) {
            const IntVector bytes = look_up(groups[g].codes + k / OCTET * octet_bytes(BITS), half, v);
            for (int i = 0; i < PARTS; ++i) store_register(to + i * WIDTH, bytes.part[i]);
          }
        });
    }
    each_pass(rows.count, [&](long r, auto num) {
      for (long k = 0; k < inputs; k += some) {
        const Word* at = kept + k / 4 * BLOCK;
        add_bytes<num, ARE_SMALL>(
            rows, r, begin + k, some, all.has_min, least, groups[k / all.group],
            [&](long octet, auto half, int v) {
              const Word* word = at + (2 * octet + half) * BLOCK + v * LANES;
              return each_part<IntVector>([&](int i) { return load_register(word + i * WIDTH); });
            },
            sums);
      }
    });
  }
}

}  // namespace grouped
}  // namespace LEVEL
