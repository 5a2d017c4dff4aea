// Weights in groups of inputs that share scales, as in GGUF files and most other formats of 4 bits. They keep this
// format in memory. Products read the codes, or expand some inputs of a block at a time to numbers (see
// grouped_sums.h).
//
// A number is scale * value + min. Its value is a signed code of 8 bits, or one of a block's 16 values, with a code of
// 4 bits as its index. Scale and min are float16 or bfloat16 numbers, which the inputs of a superblock share; if groups
// of a superblock differ, each has integer factors for scale and min. All products before the last sum are exact in
// float32, so an expanded number is the file's exact number, rounded once.
//
// A weight [N, K] is stored as [blocks] int64, the offset of each block in bytes, and the blocks of 64 outputs, the
// last one padded with zeros. A block is its `Grouping`, padded to a line, and its superblocks: 64 scales, then 64 mins
// if it has them; for each group, if they are nested, 64 int8 factors of scales and 64 uint8 factors of mins; then the
// codes, in octets of inputs. An octet of codes of 8 bits is [8 inputs][64]. An octet of 4 bits is [64] words of 32
// bits with the codes of one output, from the lowest bits: inputs 0, 2, 4, 6, 1, 3, 5, 7. So two adjacent inputs are 16
// bits apart, as in a pair of bfloat16, and every second code is in its own byte: inputs 0, 4, 1, 5, then 2, 6, 3, 7.
#pragma once

#include "products/products.h"

namespace LEVEL {
namespace grouped {

// Same fields as in grouped.py.
struct Grouping {
  int32_t bits, group, superblock, has_min, is_nested, is_bfloat16;
  int8_t values[16];

  long group_head() const { return is_nested ? (has_min ? 2 * BLOCK : BLOCK) : 0; }
  long group_bytes() const { return group_head() + group * BLOCK * bits / 8; }
  long superblock_head() const { return 2 * BLOCK * (has_min ? 2 : 1); }
  long superblock_bytes() const { return superblock_head() + superblock / group * group_bytes(); }
};
constexpr long HEAD = LINE;
static_assert(sizeof(Grouping) <= HEAD);

inline const uint8_t* block_at(const void* weight, long block) {
  return static_cast<const uint8_t*>(weight) + static_cast<const int64_t*>(weight)[block];
}
ALWAYS_INLINE Grouping grouping_of(const uint8_t* block) {
  Grouping found;
  memcpy(&found, block, sizeof found);
  return found;
}

// Sixteen numbers from p on: float16, those or bfloat16, and whole numbers with a sign or without one.
ALWAYS_INLINE Vector load_halves(const uint8_t* p) {
  return each_part([&]([[maybe_unused]] int i) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
#else
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + i * 8)));
#endif
  });
}
ALWAYS_INLINE Vector load_scales(const Grouping& all, const uint8_t* p) {
  return all.is_bfloat16 ? load(reinterpret_cast<const bfloat16*>(p)) : load_halves(p);
}
template <class Bytes>
ALWAYS_INLINE Vector load_whole(const Bytes* p) {
  constexpr bool HAS_SIGN = __is_same(Bytes, int8_t);
  // GCC's own conversions take such vectors apart.
  return each_part([&](int i) {
#if defined(__AVX512F__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
    const __m512i whole = HAS_SIGN ? _mm512_maskz_cvtepi8_epi32(0xFFFF, x) : _mm512_maskz_cvtepu8_epi32(0xFFFF, x);
    return (Floats)_mm512_maskz_cvtepi32_ps(0xFFFF, whole);
#elif defined(__AVX2__)
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * WIDTH));
    return (Floats)_mm256_cvtepi32_ps(HAS_SIGN ? _mm256_cvtepi8_epi32(x) : _mm256_cvtepu8_epi32(x));
#else
    uint32_t bytes;
    memcpy(&bytes, p + i * WIDTH, sizeof bytes);
    if constexpr (HAS_SIGN) return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes)))));
    else return (Floats)vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes)))));
#endif
  });
}

constexpr int OCTET = 8;  // inputs
constexpr long octet_bytes(long bits) { return bits * BLOCK; }

// The values that codes of four bits choose among, as `Octet` looks them up.
struct Table {
#if defined(__AVX512F__)
  Floats values;
  explicit Table(const Grouping& all) : values(load_whole(all.values).part[0]) {}
#elif defined(__AVX2__)
  __m256i values;
  explicit Table(const Grouping& all)
      : values(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(all.values)))) {}
#else
  int8x16_t values;
  explicit Table(const Grouping& all) : values(vld1q_s8(all.values)) {}
#endif
};

// An octet of inputs of 16 outputs, vector v of a block. `value` returns the values of input I.
template <int BITS>
struct Octet {
  const int8_t* codes;
  Octet(const uint8_t* octet, int v, const Table&) : codes(reinterpret_cast<const int8_t*>(octet) + v * LANES) {}
  template <int I>
  ALWAYS_INLINE Vector value() const { return load_whole(codes + I * BLOCK); }
};
template <>
struct Octet<4> {
  static constexpr int place(int i) { return i / 2 + i % 2 * 4; }  // among the codes of a word
  // The word of an output's eight codes, a byte each: those at even places are pushed together, and so are the others.
  static Word word_of(const uint8_t* codes) {
    const auto together = [](uint64_t fours) {
      const uint64_t bytes = (fours | fours >> 12) & 0x000000FF000000FF;
      return Word((bytes | bytes >> 24) & 0xFFFF);
    };
    uint64_t all;
    memcpy(&all, codes, sizeof all);
    return together(all & 0x000F000F000F000F) | together(all >> 8 & 0x000F000F000F000F) << 16;
  }
#if defined(__AVX512F__)
  Words codes;
  Floats values;
  ALWAYS_INLINE Octet(const uint8_t* octet, int v, const Table& table) : values(table.values) {
    memcpy(&codes, octet + v * LINE, sizeof codes);
  }
  template <int I>
  ALWAYS_INLINE Vector value() const {
    const __m512i places = (__m512i)(codes >> 4 * place(I));  // the lowest four bits count
    return {{(Floats)_mm512_maskz_permutexvar_ps(0xFFFF, places, (__m512)values)}};
  }
#else
  Words lower[PARTS], upper[PARTS];  // values that the lower and the upper half of each byte chooses, a byte each
  ALWAYS_INLINE Octet(const uint8_t* octet, int v, const Table& table) {
    for (int i = 0; i < PARTS; ++i) {
      const uint8_t* at = octet + v * LINE + i * sizeof(Words);
#if defined(__AVX2__)
      const __m256i mask = _mm256_set1_epi8(15), both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      lower[i] = (Words)_mm256_shuffle_epi8(table.values, _mm256_and_si256(both, mask));
      upper[i] = (Words)_mm256_shuffle_epi8(table.values, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
#else
      const uint8x16_t both = vld1q_u8(at);
      lower[i] = (Words)vqtbl1q_s8(table.values, vandq_u8(both, vdupq_n_u8(15)));
      upper[i] = (Words)vqtbl1q_s8(table.values, vshrq_n_u8(both, 4));
#endif
    }
  }
  template <int I>
  ALWAYS_INLINE Vector value() const {
    constexpr int BYTE = place(I) / 2;
    return each_part([&](int i) {
      const Words bytes = place(I) % 2 ? upper[i] : lower[i];
      return __builtin_convertvector((Ints)(bytes << (24 - 8 * BYTE)) >> 24, Floats);
    });
  }
#endif
};

// Calls use(Index<4>()) or use(Index<8>()), the bits of the codes.
template <class F>
ALWAYS_INLINE void with_bits(const Grouping& all, F use) {
  if (all.bits == 4) use(Index<4>());
  else use(Index<8>());
}

// Writes the numbers of two inputs of 16 outputs, as two steps of `Float` or as a step of bfloat16.
ALWAYS_INLINE void put_pair(const Vector& even, const Vector& odd, float* to) {
  store(to, even);
  store(to + BLOCK, odd);
}
ALWAYS_INLINE void put_pair(const Vector& even, const Vector& odd, Word* to) {
  for (int i = 0; i < PARTS; ++i) {
    const Words pair = nearest_bfloat16(even.part[i]) >> 16 | (nearest_bfloat16(odd.part[i]) & 0xFFFF0000);
    memcpy(to + i * WIDTH, &pair, sizeof pair);
  }
}

constexpr int VECTORS = BLOCK / LANES;

// A group of a block: the scales and mins of some vectors of its outputs, and its codes.
template <int COUNT>
struct Vectors {
  Vector scales[COUNT], mins[COUNT];
  const uint8_t* codes;
};
using Group = Vectors<VECTORS>;
template <int COUNT>
ALWAYS_INLINE void read_group(const uint8_t* block, const Grouping& all, long number, Vectors<COUNT>& group,
                              long first = 0) {
  const long groups_of_superblock = all.superblock / all.group;
  const uint8_t* superblock = block + HEAD + number / groups_of_superblock * all.superblock_bytes();
  const uint8_t* at = superblock + all.superblock_head() + number % groups_of_superblock * all.group_bytes();
  unrolled<COUNT>([&](auto c) INLINED {
    const long v = first + c;
    group.scales[c] = load_scales(all, superblock + v * 2 * LANES);
    group.mins[c] = all.has_min ? load_scales(all, superblock + 2 * BLOCK + v * 2 * LANES) : zeros();
    if (all.is_nested) {
      group.scales[c] = group.scales[c] * load_whole(reinterpret_cast<const int8_t*>(at) + v * LANES);
      if (all.has_min) group.mins[c] = group.mins[c] * load_whole(at + BLOCK + v * LANES);
    }
  });
  group.codes = at + all.group_head();
}

// Prefetches codes at the distance AHEAD from an octet.
ALWAYS_INLINE void fetch_octet(const uint8_t* octet, long bits) {
  for (long i = 0; i < octet_bytes(bits); i += LINE) __builtin_prefetch(octet + AHEAD + i);
}

// Writes groups first <= g < end of a block: out [inputs][64] float, or [inputs / 2][64] pairs of bfloat16.
template <class Out>
void write_out(const uint8_t* block, long first, long end, Out* out) {
  const Grouping all = grouping_of(block);
  const Table table(all);
  constexpr long PAIR = __is_same(Out, float) ? 2 * BLOCK : BLOCK;
  with_bits(all, [&]<int BITS>(Index<BITS>) {
    for (long g = first; g < end; ++g) {
      Group group;
      read_group(block, all, g, group);
      const uint8_t* at = group.codes;
      for (long k = 0; k < all.group; k += OCTET, at += octet_bytes(BITS), out += OCTET / 2 * PAIR) {
        fetch_octet(at, BITS);
        unrolled<VECTORS>([&](auto v) {
          const Octet<BITS> octet(at, v, table);
          const auto number = [&]<int I>(Index<I>) {
            return fma(group.scales[v], octet.template value<I>(), group.mins[v]);
          };
          unrolled<OCTET / 2>([&](auto pair) {
            put_pair(number(Index<2 * pair>()), number(Index<2 * pair + 1>()), out + pair * PAIR + v * LANES);
          });
        });
      }
    }
  });
}

}  // namespace grouped
}  // namespace LEVEL
