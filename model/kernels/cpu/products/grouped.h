// Weights whose inputs share scales in groups, as GGUF files and most others with 4 bits have them. They stay so in
// memory, and some inputs of a block at a time are written out as the forms of products.h want them.
//
// A number is scale * value + min. Its value is a code of 8 bits with a sign, or one of a block's 16 values, which a
// code of 4 bits chooses. Scale and min are float16 numbers, which the inputs of a superblock share; where groups of a
// superblock differ, each has whole numbers by which these are multiplied. Every product here but the last sum is exact
// in float32, so a number is what whoever made the file meant, rounded once.
//
// A weight [N, K] is stored as [blocks] int64, the byte at which each begins, and the blocks of 64 outputs, the last
// one filled up with zeros. A block is its `Grouping`, filled up to a line, and its superblocks: 64 float16 scales,
// then 64 mins if it has them; for each group, if they are nested, 64 int8 by which scales are multiplied and 64 uint8
// for mins; then for each pair of inputs the codes of 64 outputs: 64 bytes, the first input in the lower four bits, or
// 64 bytes for either input.
#pragma once

#include "products/products.h"

namespace LEVEL {
namespace grouped {

// Same fields as in grouped.py.
struct Grouping {
  int32_t bits, group, superblock, has_min, is_nested;
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

// Sixteen numbers from p on: float16, whole numbers with a sign and without one.
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
template <class Bytes>
ALWAYS_INLINE Vector load_whole(const Bytes* p) {
  return each_part([&](int i) {
    typedef Bytes Some __attribute__((vector_size(WIDTH)));
    Some x;
    memcpy(&x, p + i * WIDTH, sizeof x);
#if defined(__AVX512F__)
    const __m512i whole = __is_same(Bytes, int8_t) ? _mm512_maskz_cvtepi8_epi32(0xFFFF, (__m128i)x)
                                                   : _mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)x);
    return (Floats)_mm512_maskz_cvtepi32_ps(0xFFFF, whole);
#else
    return __builtin_convertvector(__builtin_convertvector(x, Ints), Floats);
#endif
  });
}

// The values of 64 codes of four bits in the lower, and 64 in the upper halves of 64 bytes.
ALWAYS_INLINE void look_up(const uint8_t* codes, const int8_t* values, int8_t* lower, int8_t* upper) {
#if defined(__AVX512BW__)
  const __m512i table = _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  const __m512i mask = _mm512_set1_epi8(15), both = _mm512_loadu_si512(codes);
  _mm512_storeu_si512(lower, _mm512_shuffle_epi8(table, _mm512_and_si512(both, mask)));
  _mm512_storeu_si512(upper, _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask)));
#elif defined(__AVX2__)
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  const __m256i mask = _mm256_set1_epi8(15);
  for (long i = 0; i < BLOCK; i += 32) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    const __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower + i), _mm256_shuffle_epi8(table, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper + i), _mm256_shuffle_epi8(table, high));
  }
#else
  const int8x16_t table = vld1q_s8(values);
  for (long i = 0; i < BLOCK; i += 16) {
    const uint8x16_t both = vld1q_u8(codes + i);
    vst1q_s8(lower + i, vqtbl1q_s8(table, vandq_u8(both, vdupq_n_u8(15))));
    vst1q_s8(upper + i, vqtbl1q_s8(table, vshrq_n_u8(both, 4)));
  }
#endif
}

// Writes the numbers of two inputs of 16 outputs, as a step of `Float` (the second one a step later) or of bfloat16.
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

// A group of a block: the scales and mins of its outputs, and its codes.
struct Group {
  Vector scales[VECTORS], mins[VECTORS];
  const uint8_t* codes;
};
ALWAYS_INLINE void read_group(const uint8_t* block, const Grouping& all, long number, Group& group) {
  const long groups_of_superblock = all.superblock / all.group;
  const uint8_t* superblock = block + HEAD + number / groups_of_superblock * all.superblock_bytes();
  const uint8_t* at = superblock + all.superblock_head() + number % groups_of_superblock * all.group_bytes();
  unrolled<VECTORS>([&](auto v) {
    group.scales[v] = load_halves(superblock + v * 2 * LANES);
    group.mins[v] = all.has_min ? load_halves(superblock + 2 * BLOCK + v * 2 * LANES) : zeros();
    if (all.is_nested) {
      group.scales[v] = group.scales[v] * load_whole(reinterpret_cast<const int8_t*>(at) + v * LANES);
      if (all.has_min) group.mins[v] = group.mins[v] * load_whole(at + BLOCK + v * LANES);
    }
  });
  group.codes = at + all.group_head();
}

// Writes groups first <= g < end of a block: out [inputs][64] float, or [inputs / 2][64] pairs of bfloat16.
template <class Out>
void write_out(const uint8_t* block, long first, long end, Out* out) {
  const Grouping all = grouping_of(block);
  alignas(64) int8_t looked_up[2][BLOCK];
  for (long g = first; g < end; ++g) {
    Group group;
    read_group(block, all, g, group);
    const uint8_t* at = group.codes;
    for (long pair = 0; pair < all.group / 2; ++pair, out += __is_same(Out, float) ? 2 * BLOCK : BLOCK) {
      const int8_t *even = reinterpret_cast<const int8_t*>(at), *odd = even + BLOCK;
      __builtin_prefetch(at + AHEAD);
      if (all.bits == 4) {
        look_up(at, all.values, looked_up[0], looked_up[1]);
        even = looked_up[0], odd = looked_up[1];
        at += BLOCK;
      } else {
        __builtin_prefetch(at + AHEAD + BLOCK);
        at += 2 * BLOCK;
      }
      unrolled<VECTORS>([&](auto v) {
        put_pair(fma(group.scales[v], load_whole(even + v * LANES), group.mins[v]),
                 fma(group.scales[v], load_whole(odd + v * LANES), group.mins[v]), out + v * LANES);
      });
    }
  }
}

// What a form takes a weight as.
template <class Form>
struct WrittenAs {
  using Type = Word;
};
template <>
struct WrittenAs<Float> {
  using Type = float;
};

constexpr long FEW_INPUTS = 128;   // that few rows pass over at once: 16 or 32 KB of what was written out
constexpr long MANY_INPUTS = 512;  // that many rows pass over at once

#if defined(__AVX512BF16__)
// The values of a group's codes, which bfloat16 holds: out [inputs / 2][64] pairs.
ALWAYS_INLINE void write_values(const Grouping& all, const uint8_t* codes, Word* out) {
  alignas(64) uint16_t values[32] = {};
  for (int i = 0; i < 16; ++i) store_one(values + i, float(all.values[i]));
  const __m512i table = _mm512_load_si512(values);
  for (long pair = 0; pair < all.group / 2; ++pair, out += BLOCK) {
    __builtin_prefetch(codes + AHEAD);
    if (all.bits == 4) {
      unrolled<VECTORS>([&](auto v) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes) + v);
        const Words both = (Words)_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes), places = (both | both << 12) & 0x000F000F;
        _mm512_store_si512(out + v * LANES, _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, (__m512i)places, table));
      });
      codes += BLOCK;
    } else {
      __builtin_prefetch(codes + AHEAD + BLOCK);
      const auto* even = reinterpret_cast<const int8_t*>(codes);
      unrolled<VECTORS>([&](auto v) {
        const Words lower = (Words)load_whole(even + v * LANES).part[0];
        const Words upper = (Words)load_whole(even + BLOCK + v * LANES).part[0];
        const Words pair = lower >> 16 | upper;
        _mm512_store_si512(out + v * LANES, (__m512i)pair);
      });
      codes += 2 * BLOCK;
    }
  }
}

// The sum of the numbers of a row from x on.
ALWAYS_INLINE float sum_of_row(const bfloat16* x, long count) {
  Vector sum = zeros();
  for (long k = 0; k < count; k += LANES) sum = sum + load(x + k);
  return sum_of_lanes(sum);
}

// Goes on with the sums [R][64] of rows x, or begins them, by a group whose values are written out.
template <int R>
void add_group(const bfloat16* x, long stride, const Grouping& all, const Group& group, const Word* values, bool begins,
               float* sums) {
  Vector t[R][VECTORS];
  unrolled<R>([&](auto r) { unrolled<VECTORS>([&](auto v) { t[r][v] = zeros(); }); });
  for (long k = 0; k < all.group; k += Paired::INPUTS, values += BLOCK) Paired::step(x + k, stride, values, t);
  unrolled<R>([&](auto r) {
    float* to = sums + r * BLOCK;
    const float of_row = all.has_min ? sum_of_row(x + r * stride, all.group) : 0.0f;
    unrolled<VECTORS>([&](auto v) {
      Vector sum = begins ? zeros() : load(to + v * LANES);
      if (all.has_min) sum = fma(group.mins[v], of_row, sum);
      store(to + v * LANES, fma(group.scales[v], t[r][v], sum));
    });
  });
}
template <int R = ROWS_TOGETHER>
void add_groups(long rows, const bfloat16* x, long stride, const Grouping& all, const Group& group, const Word* values,
                bool begins, float* sums) {
  if constexpr (R > 1)
    if (rows < R) return add_groups<R - 1>(rows, x, stride, all, group, values, begins, sums);
  add_group<R>(x, stride, all, group, values, begins, sums);
}

// `sum_grouped` below with values as they are: rows are multiplied with a group's values, and these sums by its scales.
// So no number of the weight is rounded.
template <class F>
void sum_of_groups(const bfloat16* x, long stride, long num_rows, const uint8_t* block, long K, float* sums, F finish) {
  const Grouping all = grouping_of(block);
  alignas(64) Word values[FEW_INPUTS / Paired::INPUTS * BLOCK];
  for (long g = 0; g < K / all.group; ++g) {
    Group group;
    read_group(block, all, g, group);
    write_values(all, group.codes, values);
    for (long r = 0; r < num_rows; r += ROWS_TOGETHER) {
      const long rows = num_rows - r < ROWS_TOGETHER ? num_rows - r : ROWS_TOGETHER;
      add_groups(rows, x + r * stride + g * all.group, stride, all, group, values, g == 0, sums + r * BLOCK);
    }
  }
  finish(0, num_rows);
}
#endif

// sums [num_rows][64] = rows x, as the form takes them, `stride` apart, times a block; `finish` as `sum_block` says.
template <class Form, class F>
void sum_grouped(const typename Form::Number* x, long stride, long num_rows, const uint8_t* block, long K, float* sums,
                 F finish) {
  const Grouping all = grouping_of(block);
  using Out = typename WrittenAs<Form>::Type;
  if constexpr (__is_same(Form, Tiled)) {
#if defined(TILES)
    Word* written = scratch<Grouping, Word>(K / Form::INPUTS * BLOCK);
    write_out(block, 0, K / all.group, written);
    sum_block<Tiled>(x, stride, num_rows, written, K, sums, finish);
#endif
#if defined(__AVX512BF16__)
  } else if constexpr (__is_same(Form, Paired)) {
    sum_of_groups(x, stride, num_rows, block, K, sums, finish);
#endif
  } else {
    const long some = num_rows <= FEW ? FEW_INPUTS : MANY_INPUTS;
    Out* written = scratch<Grouping, Out>(MANY_INPUTS / Form::INPUTS * BLOCK);
    for (long k = 0; k < K; k += some) {
      const long inputs = K - k < some ? K - k : some;
      write_out(block, k / all.group, (k + inputs) / all.group, written);
      pass_rows<Form>(x + k, stride, num_rows, reinterpret_cast<const Word*>(written), inputs, nullptr, 0, k == 0,
                      k + inputs == K, sums, finish);
    }
  }
}

}  // namespace grouped
}  // namespace LEVEL
