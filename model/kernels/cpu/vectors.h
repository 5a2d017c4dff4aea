// Sixteen float32 in one register of AVX-512, two of AVX2 or four of NEON.
//
// All kernels use these sixteen lanes, so that a sum over lanes has the same order, and float32 answers have the same
// bits, at every level of CPU. The compiler contracts nothing (-ffp-contract=off): `fma` is explicit.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace LEVEL {

constexpr int LANES = 16;

#if defined(__AVX512F__)
constexpr int PARTS = 1;
#elif defined(__AVX2__)
constexpr int PARTS = 2;
#else
constexpr int PARTS = 4;
#endif
constexpr int WIDTH = LANES / PARTS;  // float32 in a register

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
using bfloat16 = uint16_t;  // the upper half of a float32

struct Vector {
  Floats part[PARTS];
};
struct IntVector {
  Ints part[PARTS];
};

// A vector with the parts f(0), f(1), ...; written out, so that parts stay in registers.
template <class Result = Vector, class F>
ALWAYS_INLINE Result each_part(F f) {
  if constexpr (PARTS == 1) return {{f(0)}};
  else if constexpr (PARTS == 2) return {{f(0), f(1)}};
  else return {{f(0), f(1), f(2), f(3)}};
}

template <int I>
struct Index {
  constexpr operator int() const { return I; }
};
// Calls f(0) to f(COUNT - 1) with numbers that are constants for the compiler: GCC keeps an array of vectors in memory
// where a loop's number indexes it.
template <int COUNT, class F>
ALWAYS_INLINE void unrolled(F f) {
  if constexpr (COUNT > 0) {
    unrolled<COUNT - 1>(f);
    f(Index<COUNT - 1>());
  }
}

ALWAYS_INLINE Vector all_lanes(float x) {
  return each_part([&](int) { return x - Floats{}; });  // x - 0 is x, also where it is -0: no arithmetic is left of it
}
ALWAYS_INLINE Vector zeros() {
  return each_part([](int) { return Floats{}; });
}

ALWAYS_INLINE float widen(float x) { return x; }
ALWAYS_INLINE float widen(bfloat16 x) { return __builtin_bit_cast(float, uint32_t(x) << 16); }

ALWAYS_INLINE Vector load(const float* p) {
  return each_part([&](int i) {
    Floats x;
    memcpy(&x, p + i * WIDTH, sizeof x);
    return x;
  });
}
ALWAYS_INLINE Vector load(const bfloat16* p) {
  return each_part([&](int i) {
    Halves x;
    memcpy(&x, p + i * WIDTH, sizeof x);
#if defined(__AVX512F__)  // GCC's own conversion takes a vector apart, and it warns where there is no mask
    return (Floats)((Words)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)x) << 16);
#elif defined(__AVX2__)
    return (Floats)((Words)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#else
    return (Floats)(__builtin_convertvector(x, Words) << 16);
#endif
  });
}

ALWAYS_INLINE void store(float* p, const Vector& v) {
  typedef Floats Anywhere __attribute__((aligned(4), may_alias));  // memcpy would take vectors out of their registers
  for (int i = 0; i < PARTS; ++i) reinterpret_cast<Anywhere*>(p)[i] = v.part[i];
}
// The nearest bfloat16, the even one of two, in the upper half of each lane; the lower half is not cleared. Every NaN
// becomes the one that torch stores: rounded like a number, some would become infinity or 0.
ALWAYS_INLINE Words nearest_bfloat16(const Floats& x) {
  const Words bits = (Words)x, is_number = (Words)(x == x);
  return ((bits + 0x7FFF + ((bits >> 16) & 1)) & is_number) | (0x7FC00000 & ~is_number);
}
ALWAYS_INLINE void store(bfloat16* p, const Vector& v) {
  for (int i = 0; i < PARTS; ++i) {
    Halves rounded = __builtin_convertvector(nearest_bfloat16(v.part[i]) >> 16, Halves);
    memcpy(p + i * WIDTH, &rounded, sizeof rounded);
  }
}
ALWAYS_INLINE void store_one(float* p, float x) { *p = x; }
ALWAYS_INLINE void store_one(bfloat16* p, float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  *p = x == x ? bfloat16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) : bfloat16(0x7FC0);
}

// x rounded to T, as float32.
template <class T>
ALWAYS_INLINE Vector rounded(const Vector& v) {
  if constexpr (sizeof(T) == sizeof(float)) return v;
  else return each_part([&](int i) { return (Floats)(nearest_bfloat16(v.part[i]) & 0xFFFF0000); });
}
template <class T>
ALWAYS_INLINE float rounded(float x) {
  T stored;
  store_one(&stored, x);
  return widen(stored);
}

#define ARITHMETIC(OP)                                                          \
  ALWAYS_INLINE Vector operator OP(const Vector& a, const Vector& b) {          \
    return each_part([&](int i) { return a.part[i] OP b.part[i]; });            \
  }                                                                             \
  ALWAYS_INLINE Vector operator OP(const Vector& a, float b) { return a OP all_lanes(b); } \
  ALWAYS_INLINE Vector operator OP(float a, const Vector& b) { return all_lanes(a) OP b; }
ARITHMETIC(+)
ARITHMETIC(-)
ARITHMETIC(*)
ARITHMETIC(/)
#undef ARITHMETIC

ALWAYS_INLINE Floats fma_part(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}
// a * b + c in one rounding.
ALWAYS_INLINE Vector fma(const Vector& a, const Vector& b, const Vector& c) {
  return each_part([&](int i) { return fma_part(a.part[i], b.part[i], c.part[i]); });
}
ALWAYS_INLINE Vector fma(const Vector& a, float b, const Vector& c) { return fma(a, all_lanes(b), c); }
ALWAYS_INLINE Vector fma(float a, const Vector& b, const Vector& c) { return fma(all_lanes(a), b, c); }
ALWAYS_INLINE Vector fma(const Vector& a, const Vector& b, float c) { return fma(a, b, all_lanes(c)); }
ALWAYS_INLINE Vector fma(const Vector& a, float b, float c) { return fma(a, all_lanes(b), all_lanes(c)); }
ALWAYS_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

ALWAYS_INLINE Vector magnitude(const Vector& v) {
  return each_part([&](int i) { return (Floats)((Words)v.part[i] & 0x7FFFFFFF); });
}
ALWAYS_INLINE float magnitude(float x) { return __builtin_fabsf(x); }

// size, which is not negative, with the sign of x.
ALWAYS_INLINE Vector with_sign_of(const Vector& x, const Vector& size) {
  return each_part([&](int i) { return (Floats)((Words)size.part[i] | ((Words)x.part[i] & 0x80000000)); });
}
ALWAYS_INLINE float with_sign_of(float x, float size) { return __builtin_copysignf(size, x); }

// `yes` where a > b, else `no`: also where one is no number.
ALWAYS_INLINE Vector where_greater(const Vector& a, const Vector& b, const Vector& yes, const Vector& no) {
  return each_part([&](int i) { return a.part[i] > b.part[i] ? yes.part[i] : no.part[i]; });
}
ALWAYS_INLINE float where_greater(float a, float b, float yes, float no) { return a > b ? yes : no; }

// The larger one of each lane, `b` where one of the two is no number: a > b ? a : b.
ALWAYS_INLINE Vector larger(const Vector& a, const Vector& b) {
  return each_part([&](int i) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_max_ps(0xFFFF, (__m512)a.part[i], (__m512)b.part[i]);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a.part[i], (__m256)b.part[i]);
#else
    return a.part[i] > b.part[i] ? a.part[i] : b.part[i];
#endif
  });
}

constexpr int32_t LANE_NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The vector in its lanes low <= lane < high, `other` in the rest.
ALWAYS_INLINE Vector only_lanes(const Vector& v, long low, long high, float other) {
  const int least = low < 0 ? 0 : int(low), end = high > LANES ? LANES : int(high);
  return each_part([&](int i) {
    Ints lane;
    memcpy(&lane, LANE_NUMBERS + i * WIDTH, sizeof lane);
    return ((lane >= least) & (lane < end)) ? v.part[i] : Floats{} + other;
  });
}

// a * 2**exponent, of whole numbers -126 <= exponent <= 127.
ALWAYS_INLINE Vector times_power_of_two(const Vector& a, const Vector& exponent) {
  return each_part([&](int i) {
    Ints whole = __builtin_convertvector(exponent.part[i], Ints) + 127;
    return a.part[i] * (Floats)(whole << 23);
  });
}
ALWAYS_INLINE float times_power_of_two(float a, float exponent) {
  return a * __builtin_bit_cast(float, (int32_t(exponent) + 127) << 23);
}

// The lanes from `count` on, 1, 2, 4 or 8, moved to the first ones; whatever is in the rest.
template <int count>
ALWAYS_INLINE Floats upper_lanes(Floats x) {
#if defined(__AVX512F__)
  if constexpr (count == 8) return (Floats)_mm512_maskz_shuffle_f32x4(0xFFFF, (__m512)x, (__m512)x, 0x4E);
  else if constexpr (count == 4) return (Floats)_mm512_maskz_shuffle_f32x4(0xFFFF, (__m512)x, (__m512)x, 0xB1);
  else return (Floats)_mm512_maskz_permute_ps(0xFFFF, (__m512)x, count == 2 ? 0x4E : 0xB1);
#elif defined(__AVX2__)
  if constexpr (count == 4) return (Floats)_mm256_permute2f128_ps((__m256)x, (__m256)x, 1);
  else return (Floats)_mm256_permute_ps((__m256)x, count == 2 ? 0x4E : 0xB1);
#else
  return (Floats)vextq_f32((float32x4_t)x, (float32x4_t)x, count);
#endif
}

// Folds the lanes into one, halves first: lane i with lane i + 8, and so on.
template <class F>
ALWAYS_INLINE float fold_lanes(const Vector& v, F combine) {
  Floats x = v.part[0];
  if constexpr (PARTS == 2) x = combine(x, v.part[1]);
  if constexpr (PARTS == 4) x = combine(combine(x, v.part[2]), combine(v.part[1], v.part[3]));
  if constexpr (WIDTH == 16) x = combine(x, upper_lanes<8>(x));
  if constexpr (WIDTH >= 8) x = combine(x, upper_lanes<4>(x));
  x = combine(x, upper_lanes<2>(x));
  return combine(x, upper_lanes<1>(x))[0];
}
ALWAYS_INLINE float sum_of_lanes(const Vector& v) {
  return fold_lanes(v, [](Floats a, Floats b) -> Floats { return a + b; });
}
ALWAYS_INLINE float largest_lane(const Vector& v) {
  return fold_lanes(v, [](Floats a, Floats b) -> Floats { return a > b ? a : b; });
}

// Asks for `count` numbers from p on, into the second cache.
template <class T>
ALWAYS_INLINE void prefetch(const T* p, long count) {
  const char* at = reinterpret_cast<const char*>(p);
  for (long i = 0; i < count * long(sizeof(T)); i += 64) __builtin_prefetch(at + i, 0, 2);
}

constexpr long lanes_up(long count) { return (count + LANES - 1) / LANES * LANES; }
constexpr long lanes_down(long count) { return count / LANES * LANES; }

}  // namespace LEVEL
