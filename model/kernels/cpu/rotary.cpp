// Cosines and sines of the angles of rotary positions, with the same bits on every machine, while libraries differ in
// the last bit. Computed in float64 and rounded once, so that only about one in some hundred million is rounded
// incorrectly.
#include "level.h"

namespace LEVEL {
namespace {

constexpr double HALF_PI[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};  // their sum
constexpr int TERMS = 9;  // of Taylor's series, enough for |r| <= pi / 4

// x + x^3 s[0] + x^5 s[1] + ..., or 1 + x^2 s[0] + x^4 s[1] + ...
struct Series {
  double terms[TERMS];
  constexpr explicit Series(double first) {  // 1 for sines, 0 for cosines
    double term = 1;
    for (int i = 0; i < TERMS; ++i) terms[i] = term /= -(2 * i + 1 + first) * (2 * i + 2 + first);
  }
  double operator()(double squared) const {
    double sum = terms[TERMS - 1];
    for (int i = TERMS - 2; i >= 0; --i) sum = __builtin_fma(sum, squared, terms[i]);
    return sum * squared;
  }
};
constexpr Series SINES(1), COSINES(0);

}  // namespace
}  // namespace LEVEL

// cos, sin [count] of angles [count], of less than 2^30.
EXPORT(void, cos_sin_f32)(const float* angles, float* cos, float* sin, long count) {
  using namespace LEVEL;
  for (long i = 0; i < count; ++i) {
    const double angle = angles[i], quarters = __builtin_rint(angle / HALF_PI[0]);
    double r = angle;
    for (const double part : HALF_PI) r = __builtin_fma(-quarters, part, r);
    const double s = __builtin_fma(r, SINES(r * r), r), c = 1 + COSINES(r * r);
    const long turn = (long)quarters & 3;
    cos[i] = float(turn == 0 ? c : turn == 1 ? -s : turn == 2 ? -c : s);
    sin[i] = float(turn == 0 ? s : turn == 1 ? c : turn == 2 ? -s : -c);
  }
}
