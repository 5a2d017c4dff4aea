// exp, tanh, erf and activations, of a float or of a vector: by the same operations, so with the same bits.
#pragma once

#include "vectors.h"

namespace LEVEL {

template <class X>
X spread(float x);
template <>
ALWAYS_INLINE float spread<float>(float x) { return x; }
template <>
ALWAYS_INLINE Vector spread<Vector>(float x) { return all_lanes(x); }

// c[0] + c[1] x + c[2] x**2 ..., each step in one rounding; the highest coefficient first.
template <class X, size_t N>
ALWAYS_INLINE X polynomial(X x, const float (&coefficients)[N]) {
  X sum = spread<X>(coefficients[0]);
#pragma GCC unroll 16
  for (size_t i = 1; i < N; ++i) sum = fma(sum, x, spread<X>(coefficients[i]));
  return sum;
}

// e**x for x <= 0, within 2 ulp, and exactly 0 below -87, where normal numbers end: 2**n times a polynomial in the rest
// (coefficients of Cephes' expf).
template <class X>
ALWAYS_INLINE X exp(X x) {
  const X least = spread<X>(-87.0f), magic = spread<X>(12582912.0f);  // adding 1.5 * 2**23 rounds to a whole number
  const X inside = where_greater(least, x, least, x);
  const X n = fma(inside, spread<X>(1.4426950408889634f), magic) - magic;
  const X f = fma(n, spread<X>(2.12194440e-4f), fma(n, spread<X>(-0.693359375f), inside));
  const X p = polynomial(f, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                             5.0000001201e-1f});
  const X power = fma(p * f, f, f) + 1.0f;
  return where_greater(least, x, spread<X>(0.0f), times_power_of_two(power, n));
}

// Within 2 ulp or so: an odd polynomial near 0 (coefficients of Cephes' tanhf), beyond it by way of e**-2|x|.
template <class X>
ALWAYS_INLINE X tanh(X x) {
  const X z = x * x, size = magnitude(x);
  const X p = polynomial(z, {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                             -3.33332819422e-1f});
  const X near = fma(p * z, x, x);
  const X e = exp(size * -2.0f);
  const X far = (1.0f - e) / (1.0f + e);
  return where_greater(spread<X>(0.625f), size, near, with_sign_of(x, far));
}

// 1 / (1 + e**-x), by way of e**-|x|, which cannot overflow.
template <class X>
ALWAYS_INLINE X sigmoid(X x) {
  const X e = exp(0.0f - magnitude(x));
  return where_greater(x, spread<X>(0.0f), spread<X>(1.0f), e) / (e + 1.0f);
}

// x * sigmoid(x), the product first: the order that this project's answers have always had.
template <class X>
ALWAYS_INLINE X silu(X x) {
  const X e = exp(0.0f - magnitude(x));
  return x * where_greater(x, spread<X>(0.0f), spread<X>(1.0f), e) / (e + 1.0f);
}

// Within 2e-7: an odd rational function (coefficients of Eigen's), at most 4, where erf is 1 in float32.
template <class X>
ALWAYS_INLINE X erf(X x) {
  x = where_greater(x, spread<X>(4.0f), spread<X>(4.0f), x);
  x = where_greater(spread<X>(-4.0f), x, spread<X>(-4.0f), x);
  const X z = x * x;
  const X p = polynomial(z, {-2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f,
                             -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f,
                             -1.60960333262415e-02f});
  const X q = polynomial(z, {-1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                             -7.37332916720468e-03f, -1.42647390514189e-02f});
  return x * p / q;
}

// log(1 + e**x), within some ulp: the larger of x and 0, plus log(1 + e**-|x|) = 2 artanh(e / (2 + e)) by its series.
template <class X>
ALWAYS_INLINE X softplus(X x) {
  const X e = exp(0.0f - magnitude(x)), s = e / (e + 2.0f), z = s * s;
  const X p = polynomial(z, {1 / 17.0f, 1 / 15.0f, 1 / 13.0f, 1 / 11.0f, 1 / 9.0f, 1 / 7.0f, 1 / 5.0f, 1 / 3.0f, 1});
  return fma(s * 2.0f, p, where_greater(x, spread<X>(0.0f), x, spread<X>(0.0f)));
}

enum Activation : long { NONE, SILU, GELU, GELU_TANH, RELU, SIGMOID };

template <class X>
ALWAYS_INLINE X activate(X y, long activation) {
  switch (activation) {
    case SILU: return y * sigmoid(y);
    case GELU: return y * fma(erf(y * 0.7071067811865476f), spread<X>(0.5f), spread<X>(0.5f));
    case GELU_TANH: {  // (1 + tanh u) / 2 is the sigmoid of 2 u
      const X cubic = fma(y * y * y, spread<X>(0.044715f), y);
      return y * sigmoid(cubic * 1.5957691216057308f);
    }
    case RELU: return where_greater(spread<X>(0.0f), y, spread<X>(0.0f), y);
    case SIGMOID: return sigmoid(y);
    default: return y;
  }
}

}  // namespace LEVEL
