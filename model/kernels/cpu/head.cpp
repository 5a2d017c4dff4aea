// The largest logits, found during the head's product: no logits are written or read again.
#include "level.h"
#include "products/grouped_sums.h"
#include "products/whole_products.h"

namespace LEVEL {
namespace {

// The largest numbers of a row that a piece of work has seen, lane by lane, and the column of each one's lane 0.
struct Found {
  float largest[LANES], columns[LANES];
};

// Records the largest of the first `width` of numbers [64] in the block of columns from `column`, as float32, or
// rounded to bfloat16 like the product. Returns unusual + 0 * numbers, NaN if one is not finite.
template <class T>
ALWAYS_INLINE Vector note_largest(float* numbers, long width, long column, Found& found, Vector unusual) {
  // The last column again where there are no more: among equals the first one is taken.
  for (long j = width; j < BLOCK; ++j) numbers[j] = numbers[width - 1];
  Vector best = load(found.largest), columns = load(found.columns);
  for (long j = 0; j < BLOCK; j += LANES) {
    T rounded[LANES];
    store(rounded, load(numbers + j));
    const Vector each = load(rounded);
    columns = where_greater(each, best, all_lanes(float(column + j)), columns);
    best = where_greater(each, best, each, best);
    unusual = fma(each, 0.0f, unusual);
  }
  store(found.largest, best);
  store(found.columns, columns);
  return unusual;
}

// numbers[r] = the largest of row r of x [num_rows][K] times a weight, rounded to T, which is first at places[r].
// Returns whether all numbers of the product are finite; if not, nothing is found. N <= 2**24; sums_of: as of
// `multiply_by`
template <class Form, class T, class S>
bool find_largest_by(const T* x, long num_rows, long K, long N, long* places, float* numbers, S sums_of) {
  bool all_finite = true;
  for (long first = 0; first < num_rows; first += MOST_ROWS) {
    const long count = num_rows - first < MOST_ROWS ? num_rows - first : MOST_ROWS;
    const Cuts cuts(count, N);
    const long num_parts = cuts.column_parts;
    Found* all = scratch<Found, Found>(num_parts * count);
    parallel(num_parts, [&](long part) {
      Found* mine = all + part * count;
      for (long r = 0; r < count; ++r) {
        store(mine[r].largest, all_lanes(-__builtin_inff()));
        store(mine[r].columns, zeros());
      }
      const auto make_sums = sums_of(rows_for<Form>(x + first * K, count, K), count);
      float* sums = scratch<ProductSums, float>(lanes_up(count) * BLOCK);
      const InUse<Form> in_use;
      Vector unusual = zeros();
      for (long block = cuts.block(part); block < cuts.block(part + 1); ++block) {
        const long column = block * BLOCK, width = N - column < BLOCK ? N - column : BLOCK;
        make_sums(block, sums, [&](long r, long num) {
          for (long i = r; i < r + num; ++i)
            unusual = note_largest<T>(sums + i * BLOCK, width, column, mine[i], unusual);
        });
      }
      const float sum = sum_of_lanes(unusual);
      if (sum != sum) __atomic_store_n(&all_finite, false, __ATOMIC_RELAXED);
    });
    for (long r = 0; r < count; ++r) {
      long place = N;
      float number = -__builtin_inff();
      for (long part = 0; part < num_parts; ++part)
        for (long lane = 0; lane < LANES; ++lane) {
          const Found& found = all[part * count + r];
          const long column = long(found.columns[lane]) + lane;
          if (found.largest[lane] > number || (found.largest[lane] == number && column < place))
            place = column, number = found.largest[lane];
        }
      places[first + r] = place;
      numbers[first + r] = number;
    }
  }
  return all_finite;
}

template <class Form, class T>
bool find_largest(const T* x, const Word* w, long num_rows, long K, long N, long* places, float* numbers) {
  return find_largest_by<Form>(x, num_rows, K, N, places, numbers, sums_of_words<Form>(w, K));
}
template <class Form, class T>
bool find_largest_grouped(const T* x, const void* w, long num_rows, long K, long N, long* places, float* numbers) {
  return find_largest_by<Form>(x, num_rows, K, N, places, numbers, grouped::sums_of_grouped<Form>(w, K));
}

}  // namespace
}  // namespace LEVEL

// finite[0] = whether all numbers of x [num_rows][K] W^T are finite, W as pack_weight_f32 lays it; if so numbers
// [num_rows] are the largest of each row and places [num_rows] where they first are. N <= 2**24
EXPORT(void, find_largest_f32)(const float* x, const uint32_t* packed, long num_rows, long K, long N, long* places,
                               float* numbers, long* finite) {
  using namespace LEVEL;
  *finite = find_largest<Float>(x, packed, num_rows, K, N, places, numbers);
}

// The same of bfloat16 rows and weights, with the bits of product_bf16; arithmetic: as there
EXPORT(void, find_largest_bf16)(const uint16_t* x, const uint32_t* packed, long num_rows, long K, long N, long* places,
                                float* numbers, long* finite, long arithmetic) {
  using namespace LEVEL;
  *finite = arithmetic == 1 ? find_largest<Dot>(x, packed, num_rows, K, N, places, numbers)
                            : find_largest<Widened>(x, packed, num_rows, K, N, places, numbers);
}

// The same of float32 rows and bfloat16 weights, with the bits of product_f32_bf16.
EXPORT(void, find_largest_f32_bf16)(const float* x, const uint32_t* packed, long num_rows, long K, long N, long* places,
                                    float* numbers, long* finite) {
  using namespace LEVEL;
  *finite = find_largest<Widened>(x, packed, num_rows, K, N, places, numbers);
}

// The same of a weight as pack_grouped lays it, with the bits of product_grouped_f32 and product_grouped_bf16.
EXPORT(void, find_largest_grouped_f32)(const float* x, const void* w, long num_rows, long K, long N, long* places,
                                       float* numbers, long* finite, long arithmetic) {
  LEVEL::grouped::with_form<float>(arithmetic, [&]<class Form>(Form) {
    *finite = LEVEL::find_largest_grouped<Form>(x, w, num_rows, K, N, places, numbers);
  });
}
EXPORT(void, find_largest_grouped_bf16)(const uint16_t* x, const void* w, long num_rows, long K, long N, long* places,
                                        float* numbers, long* finite, long arithmetic) {
  LEVEL::grouped::with_form<uint16_t>(arithmetic, [&]<class Form>(Form) {
    *finite = LEVEL::find_largest_grouped<Form>(x, w, num_rows, K, N, places, numbers);
  });
}
