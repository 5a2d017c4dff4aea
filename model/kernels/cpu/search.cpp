// Searches in rows, at the speed of memory. Every answer is exact and depends only on its row.
#include "threads/pool.h"
#include "vectors.h"

namespace LEVEL {
namespace {

constexpr long STRIDE = 4 * LANES;
constexpr long PIECE = 16 * STRIDE;  // numbers of which the largest is found before its index

constexpr float INFINITE = __builtin_inff();

// The first index of `number` from `start`, or of the first NaN if `number` is NaN.
template <class X>
long first_of(const X* x, long start, long width, float number) {
  for (long i = start; i < width; ++i)
    if (const float here = widen(x[i]); here == number || (here != here && number != number)) return i;
  return start;
}

// The largest of x [width], or the first NaN.
template <class X>
float largest_by_one(const X* x, long width) {
  float largest = -INFINITE;
  for (long i = 0; i < width; ++i) {
    const float number = widen(x[i]);
    if (number != number) return number;
    largest = number > largest ? number : largest;
  }
  return largest;
}

template <class X>
long argmax_row(const X* x, long width, float* number_there) {
  const long whole = width - width % STRIDE;
  float largest = -INFINITE;
  long at = 0;
  Vector unusual = zeros();  // times zero, infinity and NaN are NaN, all else is 0
  for (long piece = 0; piece < whole; piece += PIECE) {
    Vector a = all_lanes(largest), b = a, c = a, d = a;
    // The logits of the head's product have left this core's caches, and the CPU's own prefetching ends at each page.
    prefetch(x + piece + 2 * PIECE, PIECE);
    const long end = piece + PIECE < whole ? piece + PIECE : whole;
    for (long i = piece; i < end; i += STRIDE) {
      const Vector p = load(x + i), q = load(x + i + LANES), r = load(x + i + 2 * LANES), s = load(x + i + 3 * LANES);
      a = larger(p, a), b = larger(q, b), c = larger(r, c), d = larger(s, d);
      unusual = fma((p + q) + (r + s), 0.0f, unusual);
    }
    const float largest_here = largest_lane(larger(larger(a, b), larger(c, d)));
    if (largest_here > largest) largest = largest_here, at = piece;
  }
  float rest = 0.0f;
  for (long i = whole; i < width; ++i) {
    const float number = widen(x[i]);
    rest = fma(number, 0.0f, rest);
    if (number > largest) largest = number, at = i;
  }
  rest += sum_of_lanes(unusual);
  if (rest != rest) largest = largest_by_one(x, width), at = 0;
  *number_there = largest;
  return first_of(x, at, width, largest);
}

template <class X>
void argmax(const X* x, long num_rows, long width, long* places, float* numbers) {
  parallel_shares(num_rows, 8, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) places[row] = argmax_row(x + row * width, width, numbers + row);
  });
}

}  // namespace
}  // namespace LEVEL

// numbers[row] = x[row, places[row]] = the largest of x[row], at its first place; the first NaN where there is one.
// x [num_rows, width]; places, numbers [num_rows]
EXPORT(void, argmax_f32)(const float* x, long num_rows, long width, long* places, float* numbers) {
  LEVEL::argmax(x, num_rows, width, places, numbers);
}
EXPORT(void, argmax_bf16)(const LEVEL::bfloat16* x, long num_rows, long width, long* places, float* numbers) {
  LEVEL::argmax(x, num_rows, width, places, numbers);
}

// place = the first of numbers [count] that is not 0 <= number < limit, -1 where all are.
EXPORT(void, first_outside)(const long* numbers, long count, long limit, long* place) {
  *place = -1;
  for (long i = 0; i < count && *place < 0; ++i)
    if (numbers[i] < 0 || numbers[i] >= limit) *place = i;
}
