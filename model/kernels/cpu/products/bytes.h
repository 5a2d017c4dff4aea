// Rows rounded to bytes, for integer products with weights in groups of inputs that share scales (grouped.h).
//
// 32 inputs of a row share a scale, their largest magnitude / 127; a number becomes the nearest of -127 .. 127 times
// it. So the error of a number is at most 1/254 of the largest of its 32. The scale of a group is NaN if one of its
// numbers is not finite.
//
// A row [K], K a multiple of 16, is stored as its numbers, padded to a line, in octets of inputs 0, 4, 1, 5, 2, 6, 3,
// 7, like the weights; its scales, float32 [K / 32]; and the sum of each 16 numbers, int32.
#pragma once

#include "functions.h"
#include "products/blocks.h"

namespace LEVEL {

constexpr long SCALED_INPUTS = 32, SUMMED_INPUTS = 16;
constexpr int MOST_SMALL = 16;  // 32 inputs * 127 * 16 / 2 < 2**15

// Each number rounded to the nearest whole one, the even one of two.
ALWAYS_INLINE IntVector nearest(const Vector& v) {
  return each_part<IntVector>([&](int i) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtps_epi32(0xFFFF, (__m512)v.part[i]);  // without a mask GCC 12 warns of its own header
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtps_epi32((__m256)v.part[i]);
#else
    return (Ints)vcvtnq_s32_f32((float32x4_t)v.part[i]);
#endif
  });
}

// By way of memcpy GCC moves vectors through the stack.
typedef Ints LooseInts __attribute__((aligned(1), may_alias));
ALWAYS_INLINE Ints load_register(const void* p) { return *static_cast<const LooseInts*>(p); }
ALWAYS_INLINE void store_register(void* p, Ints x) { *static_cast<LooseInts*>(p) = x; }

// The largest |x|; not finite where any is not.
template <class T>
float largest_of(const T* x, long count) {
  // Without their sign the bits of numbers, infinity and NaN ascend.
  const auto magnitude = [](const Vector& v) {
    return each_part<IntVector>([&](int i) { return (Ints)v.part[i] & 0x7FFFFFFF; });
  };
  const auto larger = [](const IntVector& a, const IntVector& b) {
    return each_part<IntVector>([&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
  };
  IntVector most = magnitude(zeros());
  const long whole = lanes_down(count);
  for (long k = 0; k < whole; k += LANES) most = larger(most, magnitude(load(x + k)));
  int32_t lanes[LANES], bits = 0;
  for (int i = 0; i < PARTS; ++i) store_register(lanes + i * WIDTH, most.part[i]);
  for (const int32_t lane : lanes) bits = lane > bits ? lane : bits;
  for (long k = whole; k < count; ++k) {
    const int32_t own = __builtin_bit_cast(int32_t, widen(x[k])) & 0x7FFFFFFF;
    bits = own > bits ? own : bits;
  }
  return __builtin_bit_cast(float, bits);
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
// Without an instruction for four bytes they are multiplied as two pairs of 16 bits: to multiply bytes straight away
// would cut off sums at 16 bits. The first and the third signed byte of each lane as such a pair, and the others:
typedef int16_t Shorts __attribute__((vector_size(4 * WIDTH)));
ALWAYS_INLINE Shorts even_numbers(Ints bytes) { return ((Shorts)bytes << 8) >> 8; }
ALWAYS_INLINE Shorts odd_numbers(Ints bytes) { return (Shorts)bytes >> 8; }
// total + in each lane the products of two pairs with two pairs
ALWAYS_INLINE Ints add_pairs(Ints total, Ints even, Ints odd, Shorts even_weights, Shorts odd_weights) {
  const auto product = [](Ints a, Shorts b) {
#if defined(__AVX512F__)
    return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
  };
  return total + product(even, even_weights) + product(odd, odd_weights);
}

// Where no weight is above MOST_SMALL, sums of SCALED_INPUTS products fit 16 bits: sums + the products of two bytes
// (0 .. MOST_SMALL) and two weights (-127 .. 127), and then the sum of each lane's two sums.
constexpr bool HAS_SMALL_DOTS = true;
ALWAYS_INLINE Ints add_small_dots(Ints sums, Ints bytes, Ints weights) {
#if defined(__AVX512F__)
  return (Ints)((Shorts)sums + (Shorts)_mm512_maddubs_epi16((__m512i)bytes, (__m512i)weights));
#else
  return (Ints)((Shorts)sums + (Shorts)_mm256_maddubs_epi16((__m256i)bytes, (__m256i)weights));
#endif
}
ALWAYS_INLINE Ints sum_of_pairs(Ints sums) {
  return add_pairs(Ints{}, sums, Ints{}, Shorts{} + int16_t(1), Shorts{});
}
#else
constexpr bool HAS_SMALL_DOTS = false;
ALWAYS_INLINE Ints add_small_dots(Ints sums, Ints, Ints) { return sums; }
ALWAYS_INLINE Ints sum_of_pairs(Ints sums) { return sums; }
#endif

// total + in each lane the products of four bytes (0 .. 255) with four weights (-128 .. 127); exact.
ALWAYS_INLINE Ints add_dots(Ints total, Ints bytes, Ints weights) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)bytes, (__m512i)weights);
#elif defined(__AVX2__)
  return add_pairs(total, bytes & 0x00FF00FF, (bytes >> 8) & 0x00FF00FF, even_numbers(weights), odd_numbers(weights));
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return (Ints)vusdotq_s32((int32x4_t)total, (uint8x16_t)bytes, (int8x16_t)weights);
#else
  for (int shift = 0; shift < 32; shift += 8) total += ((bytes >> shift) & 0xFF) * ((weights << (24 - shift)) >> 24);
  return total;
#endif
}

struct Bytes {  // a form of arithmetic like `Float` in products.h, only for weights in groups
  using Number = int8_t;
  static constexpr int INPUTS = 1;

  // Offsets of the parts of a row, in bytes.
  static constexpr long scales_at(long K) { return (K + LINE - 1) / LINE * LINE; }
  static constexpr long sums_at(long K) {
    return scales_at(K) + (K + SCALED_INPUTS - 1) / SCALED_INPUTS * long(sizeof(float));
  }
  static constexpr long row_bytes(long K) {
    const long end = sums_at(K) + K / SUMMED_INPUTS * long(sizeof(int32_t));
    return ((end + LINE - 1) / LINE | 1) * LINE;  // an odd number of lines: rows do not displace each other in a cache
  }
};

// Writes a row x [K] as bytes.
template <class T>
void round_row(const T* x, long K, int8_t* row) {
  float* scales = reinterpret_cast<float*>(row + Bytes::scales_at(K));
  int32_t* sums = reinterpret_cast<int32_t*>(row + Bytes::sums_at(K));
  for (long first = 0; first < K; first += SCALED_INPUTS) {
    const long count = K - first < SCALED_INPUTS ? K - first : SCALED_INPUTS;
    const float largest = largest_of(x + first, count);
    const bool is_finite = largest < __builtin_inff();
    const bool counts = is_finite && largest >= 1e-30f;  // else the scale would not be a normal number
    const float inverse = counts ? 127.0f / largest : 0.0f;
    *scales++ = counts ? largest / 127.0f : is_finite ? 0.0f : __builtin_nanf("");
    for (long k = first; k < first + count; k += SUMMED_INPUTS) {
      typedef int8_t Sixteen __attribute__((vector_size(LANES)));
      Sixteen bytes = {};
      float sum = 0;
      if (counts) {
        const IntVector whole = nearest(load(x + k) * inverse);
        for (int i = 0; i < PARTS; ++i) {
          typedef int8_t Some __attribute__((vector_size(WIDTH)));
          const Some some = __builtin_convertvector(whole.part[i], Some);
          memcpy(reinterpret_cast<char*>(&bytes) + i * WIDTH, &some, sizeof some);
        }
        sum = sum_of_lanes(each_part([&](int i) { return __builtin_convertvector(whole.part[i], Floats); }));  // exact
      }
      bytes = __builtin_shufflevector(bytes, bytes, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
      memcpy(row + k, &bytes, sizeof bytes);
      *sums++ = int32_t(sum);
    }
  }
}

}  // namespace LEVEL
