// Sums of few rows with blocks of weights in groups of inputs that share scales (see grouped_sums.h).
#include "products/grouped_sums.h"

#include "products/grouped_bytes.h"

namespace LEVEL {
namespace grouped {
namespace {

// sums [R][64] of few rows x times a block, without expanding its numbers
template <int BITS, int R>
void sum_numbers(const float* x, long stride, const uint8_t* block, const Grouping& all, long K, float* sums) {
  const Table table(all);
  Group group;
  read_group(block, all, 0, group);
  const uint8_t* at = group.codes;
  for (long k = 0; k < K;) {
    const bool begins = k == 0;
    Vector t[R][VECTORS];
    unrolled<R>([&](auto r) { unrolled<VECTORS>([&](auto v) { t[r][v] = zeros(); }); });
    for (const long end = k + CHAIN < K ? k + CHAIN : K; k < end;) {
      if (k > 0 && k % all.group == 0) {
        read_group(block, all, k / all.group, group);
        at = group.codes;
      }
      const long next = (k / all.group + 1) * all.group;
      for (const long some = next < end ? next : end; k < some; k += OCTET, at += octet_bytes(BITS)) {
        fetch_octet(at, BITS);
        unrolled<OCTET>([&]<int I>(Index<I>) INLINED {
          unrolled<VECTORS>([&](auto v) INLINED {
            const Octet<BITS> octet(at, v, table);
            const Vector number = fma(group.scales[v], octet.template value<I>(), group.mins[v]);
            unrolled<R>([&](auto r) INLINED { t[r][v] = fma(all_lanes(x[r * stride + k + I]), number, t[r][v]); });
          });
        });
      }
    }
    put_sums(t, begins, sums);
  }
}

#if defined(__AVX512BF16__)
// The values of pair J of an octet's inputs, of 16 outputs; bfloat16 holds them. table: the 16 values, twice, as of the
// five bits that choose a word the fifth is the next code's.
template <int BITS, int J>
ALWAYS_INLINE __m512bh pair_of_values(const uint8_t* octet, int v, __m512i table) {
  if constexpr (BITS == 4) {
    Words codes;
    memcpy(&codes, octet + v * LINE, sizeof codes);
    return (__m512bh)_mm512_maskz_permutexvar_epi16(0xFFFFFFFF, (__m512i)(codes >> 4 * J), table);
  } else {
    const auto* codes = reinterpret_cast<const int8_t*>(octet) + 2 * J * BLOCK + v * LANES;
    const Words even = (Words)load_whole(codes).part[0], odd = (Words)load_whole(codes + BLOCK).part[0];
    return (__m512bh)(even >> 16 | odd);
  }
}

// Adds a group to the sums [R][64] of rows x, or begins them: values(octet, pair, v) returns a pair of its values. The
// scales are multiplied with sums of values, so no number of the weight is rounded.
template <int R, class V>
void add_group(const Rows<Paired>& rows, long first_row, long first_input, long K, const Grouping& all, const Group& group,
               V values, float* sums) {
  const bfloat16* x = rows.x + first_row * rows.stride + first_input;
  Vector t[R][VECTORS];
  unrolled<R>([&](auto r) { unrolled<VECTORS>([&](auto v) { t[r][v] = zeros(); }); });
  for (long octet = 0; octet < all.group / OCTET; ++octet, x += OCTET)
    unrolled<OCTET / 2>([&](auto pair) {
      __m512bh weights[VECTORS];
      unrolled<VECTORS>([&](auto v) { weights[v] = values(octet, pair, v); });
      int32_t pairs[R];
      unrolled<R>([&](auto r) { memcpy(&pairs[r], x + r * rows.stride + 2 * pair, sizeof pairs[r]); });
      Paired::add(pairs, weights, t);
    });
  unrolled<R>([&](auto r) {
    float* to = sums + (first_row + r) * BLOCK;
    float of_row = 0;
    if (all.has_min) {
      const float* parts = rows.sums + (first_row + r) * (K / LANES) + first_input / LANES;
      for (long i = 0; i < all.group / LANES; ++i) of_row += parts[i];
    }
    unrolled<VECTORS>([&](auto v) {
      Vector sum = first_input == 0 ? zeros() : load(to + v * LANES);
      if (all.has_min) sum = fma(group.mins[v], of_row, sum);
      store(to + v * LANES, fma(group.scales[v], t[r][v], sum));
    });
  });
}

// sums [rows][64] = rows times a block. Many rows share the looked-up values of a group.
template <int BITS>
void sum_of_groups(const Rows<Paired>& rows, const uint8_t* block, const Grouping& all, long K, float* sums) {
  alignas(64) uint16_t words[32];
  for (int i = 0; i < 32; ++i) store_one(words + i, float(all.values[i % 16]));
  const __m512i table = _mm512_load_si512(words);
  alignas(64) Word kept[FEW_INPUTS / 2 * BLOCK];
  for (long k = 0; k < K; k += all.group) {
    Group group;
    read_group(block, all, k / all.group, group);
    const auto looked_up = [&](long octet, auto pair, auto v) {
      const uint8_t* at = group.codes + octet * octet_bytes(BITS);
      if (pair == 0) __builtin_prefetch(at + AHEAD + v * LINE);
      if (BITS == 8 && pair == 1) __builtin_prefetch(at + AHEAD + (VECTORS + v) * LINE);
      return pair_of_values<BITS, pair>(at, v, table);
    };
    if (rows.count <= 2 * ROWS_TOGETHER) {
      each_pass(rows.count, [&](long r, auto some) { add_group<some>(rows, r, k, K, all, group, looked_up, sums); });
      continue;
    }
    for (long octet = 0; octet < all.group / OCTET; ++octet)
      unrolled<OCTET / 2>([&](auto pair) {
        unrolled<VECTORS>([&](auto v) {
          _mm512_store_si512(kept + (octet * OCTET / 2 + pair) * BLOCK + v * LANES, (__m512i)looked_up(octet, pair, v));
        });
      });
    const auto again = [&](long octet, auto pair, auto v) {
      return (__m512bh)_mm512_load_si512(kept + (octet * OCTET / 2 + pair) * BLOCK + v * LANES);
    };
    each_pass(rows.count, [&](long r, auto some) { add_group<some>(rows, r, k, K, all, group, again, sums); });
  }
}
#endif

}  // namespace

void sum_bytes(const Rows<Bytes>& rows, const uint8_t* block, long K, float* sums) {
  const Grouping all = grouping_of(block);
  with_bits(all, [&](auto bits) { sum_of_bytes<bits>({rows.x, rows.stride, rows.count, K}, block, all, sums); });
}

#if defined(__AVX512BF16__)
void sum_pairs(const Rows<Paired>& rows, const uint8_t* block, long K, float* sums) {
  const Grouping all = grouping_of(block);
  with_bits(all, [&](auto bits) { sum_of_groups<bits>(rows, block, all, K, sums); });
}
#endif

void sum_floats(const Rows<Float>& rows, const uint8_t* block, long K, float* sums) {
  const Grouping all = grouping_of(block);
  with_bits(all, [&]<int BITS>(Index<BITS>) {
    with_rows<FUSED_ROWS>(rows.count, [&](auto r) { sum_numbers<BITS, r>(rows.x, rows.stride, block, all, K, sums); });
  });
}

}  // namespace grouped
}  // namespace LEVEL
