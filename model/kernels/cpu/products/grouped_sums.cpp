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

#if !defined(__AVX512F__)
// A chain of inputs of a block, from input k on, and the groups of it.
struct Chain {
  long k, inputs, inputs_of_group;
  Group groups[CHAIN / SUMMED_INPUTS];

  void read(const uint8_t* block, const Grouping& all, long first, long K) {
    k = first, inputs = K - k < CHAIN ? K - k : CHAIN;
    inputs_of_group = all.group < inputs ? all.group : inputs;
    for (long g = 0, at = k; g * inputs_of_group < inputs; ++g, at += inputs_of_group) {
      read_group(block, all, at / all.group, groups[g]);
      groups[g].codes += at % all.group / OCTET * octet_bytes(all.bits);
    }
  }
};

// Goes on with the sums [R][64] of rows x by a chain, C vectors of outputs with their numbers in [inputs][C][16], or
// begins them. If WRITES, it also writes the numbers of the vectors from v on of the chain `next`, of the same length:
// the CPU expands these codes while it multiplies.
template <int BITS, int R, int C, bool WRITES>
void add_vectors(const float* x, long stride, long inputs, const float* numbers, bool begins, float* sums,
                 const Chain& next, int v, const Table& table, float* written) {
  constexpr int LINES_OF_VECTOR = BITS / 4;  // of an octet
  Vector t[R][C];
  unrolled<R>([&](auto r) { unrolled<C>([&](auto c) { t[r][c] = zeros(); }); });
  const float* const end = x + inputs;
  for (const Group* group = next.groups; x < end; ++group) {
    const uint8_t* at = group->codes;
    for (const float* stop = WRITES ? x + next.inputs_of_group : end; x < stop; x += OCTET) {
      const Octet<BITS> octets[] = {{at, v, table}, {at, v + C - 1, table}};
      for (int i = 0; WRITES && i < C * LINES_OF_VECTOR; ++i)
        __builtin_prefetch(at + AHEAD + (v * LINES_OF_VECTOR + i) * LINE);
      unrolled<OCTET>([&]<int I>(Index<I>) INLINED {
        Vector weights[C];
        unrolled<C>([&](auto c) INLINED { weights[c] = load(numbers + (I * C + c) * LANES); });
        add_input(x + I, stride, weights, t);
        if constexpr (WRITES)
          unrolled<C>([&](auto c) INLINED {
            const Vector number = fma(group->scales[v + c], octets[c].template value<I>(), group->mins[v + c]);
            store(written + (I * C + c) * LANES, number);
          });
      });
      numbers += OCTET * C * LANES;
      if constexpr (WRITES) at += octet_bytes(BITS), written += OCTET * C * LANES;
    }
  }
  put_sums(t, begins, sums);
}

// sums [rows][64] of rows times a block. The first pass over the rows expands the numbers of the block for all.
template <int BITS, int C>
void sum_expanded(const Rows<Float>& rows, const uint8_t* block, const Grouping& all, long K, float* sums) {
  constexpr long APART = CHAIN * C * LANES + 512;  // not a multiple of 4 KB: loads would wait for the stores there
  const Table table(all);
  struct {
    long row;
    decltype(&add_vectors<BITS, 1, C, false>) add, add_and_write;
  } passes[(FEW + ROWS_TOGETHER - 1) / ROWS_TOGETHER];
  long num_passes = 0;
  each_pass(rows.count, [&](long r, auto num) {
    constexpr int R = num, LEAST = C == 1 ? ROWS_TOGETHER / 2 : 2;
    if constexpr (R >= LEAST && (C == 1 || R == LEAST))
      passes[num_passes++] = {r, add_vectors<BITS, R, C, false>, add_vectors<BITS, R, C, true>};
  });
  alignas(64) static constexpr float ZEROS[CHAIN * C * LANES] = {};
  alignas(64) float buffer[2 * APART], none[BLOCK];
  float *numbers = buffer, *written = buffer + APART;
  Chain chains[2], *chain = &chains[0], *next = &chains[1];
  const auto begin_chain = [&] {
    add_vectors<BITS, 1, C, true>(rows.x, 0, chain->inputs, ZEROS, true, none, *chain, 0, table, numbers);
  };
  chain->read(block, all, 0, K);
  begin_chain();
  for (long k = 0; k < K; k += CHAIN) {
    const bool is_last = k + CHAIN >= K;
    if (!is_last) next->read(block, all, k + CHAIN, K);
    for (int v = 0; v < VECTORS; v += C) {
      const bool ends = v + C == VECTORS, writes = !ends || (!is_last && next->inputs == chain->inputs);
      const Chain& of_next = ends && writes ? *next : *chain;
      for (long i = 0; i < num_passes; ++i) {
        const auto add = i == 0 && writes ? passes[i].add_and_write : passes[i].add;
        add(rows.x + passes[i].row * rows.stride + k, rows.stride, chain->inputs, numbers, k == 0,
            sums + passes[i].row * BLOCK + v * LANES, of_next, (v + C) % VECTORS, table, written);
      }
      if (writes) {
        float* const used = numbers;
        numbers = written, written = used;
      }
    }
    Chain* const used = chain;
    chain = next, next = used;
    if (!is_last && next->inputs != chain->inputs) begin_chain();
  }
}
#endif

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
  const ByteRows bytes{rows.x, rows.stride, rows.count, K};
  if (has_small_values(all)) return sum_of_bytes<4, HAS_SMALL_DOTS>(bytes, block, all, sums);
  with_bits(all, [&](auto bits) { sum_of_bytes<bits, false>(bytes, block, all, sums); });
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
#if defined(__AVX512F__)
    with_rows(rows.count, [&](auto r) { sum_numbers<BITS, r>(rows.x, rows.stride, block, all, K, sums); });
#else
    if (rows.count == 1) sum_numbers<BITS, 1>(rows.x, rows.stride, block, all, K, sums);
    else if (rows.count == 2) sum_expanded<BITS, 2>(rows, block, all, K, sums);
    else sum_expanded<BITS, 1>(rows, block, all, K, sums);
#endif
  });
}

}  // namespace grouped
}  // namespace LEVEL
