// Whole products of rows with weights in int8, and the packing of a weight (see int8.h).
#include "products/int8.h"
#include "level.h"
#include "threads/pool.h"
#include "threads/scratch.h"

namespace LEVEL {
namespace {

constexpr long SHARED_FROM = 4;        // rows: fewer are converted faster than other threads start
constexpr long PARTS_OF_A_THREAD = 4;  // so that a late thread still finds work
constexpr long ROWS_AT_ONCE = 512;     // rows converted to digits at once: 4.5 MB of 3,072 float32

// As `product_int8_f32` below, of ROWS_AT_ONCE at most.
template <int COUNT, class T>
void multiply_some(const T* x, const int8_t* w, const T* bias, T* out, long num_rows, long K, long N, long activation) {
  struct Digits;
  struct Scales;
  const long stride = int8::digit_stride(K), blocks = (N + BLOCK - 1) / BLOCK;
  uint8_t* digits = scratch<Digits, uint8_t>(int8::room_for_digits<T>(num_rows, K));
  float* row_scales = scratch<Scales, float>(num_rows);
  parallel_shares(num_rows, SHARED_FROM, [&](long begin, long end) {
    for (long r = begin; r < end; ++r) row_scales[r] = int8::digits_of_row<COUNT>(x + r * K, K, digits + r * COUNT * stride);
  });
  // A part is some blocks of columns, and where these are fewer than threads only some of the rows.
  const long most = PARTS_OF_A_THREAD * lightwell_num_threads(), groups = (num_rows + int8::ROWS - 1) / int8::ROWS;
  const long column_parts = blocks < most ? blocks : most;
  const long wanted = most / column_parts, row_parts = wanted < groups ? wanted : groups;
  parallel(column_parts * row_parts, [&](long part) {
    const long column = part / row_parts, row = part % row_parts;
    const long top = row * groups / row_parts * int8::ROWS, last = (row + 1) * groups / row_parts * int8::ROWS;
    int8::multiply_blocks<COUNT>(digits + top * COUNT * stride, row_scales + top,
                                 (last < num_rows ? last : num_rows) - top, K, w, bias, activation, N,
                                 column * blocks / column_parts, (column + 1) * blocks / column_parts, out + top * N);
  });
}

template <class T>
void multiply(const T* x, const int8_t* w, const T* bias, T* out, long num_rows, long K, long N, long activation,
              bool as_bytes) {
  if (N == 0) return;
  for (long r = 0; r < num_rows; r += ROWS_AT_ONCE) {
    const auto multiply = as_bytes ? multiply_some<1, T> : multiply_some<int8::NUM_DIGITS<T>, T>;
    multiply(x + r * K, w, bias, out + r * N, num_rows - r < ROWS_AT_ONCE ? num_rows - r : ROWS_AT_ONCE, K, N,
             activation);
  }
}

void pack_block(const int8_t* values, const float* scales, long num, long K, int8_t* block) {
  memset(block, 0, int8::block_bytes(K));
  for (long n = 0; n < num; ++n) {
    const int8_t* row = values + n * K;
    int8_t* to = block + int8::HEADER + n * int8::GROUP;
    int32_t sum = 0;
    for (long k = 0; k < K; ++k) {
      sum += row[k];
      to[k / int8::GROUP * int8::GROUP * BLOCK + k % int8::GROUP] = row[k];
    }
    const int32_t start = -128 * sum;
    memcpy(block + n * sizeof(float), scales + n, sizeof(float));
    memcpy(block + (BLOCK + n) * sizeof(float), &start, sizeof start);
  }
}

}  // namespace
}  // namespace LEVEL

// out [num_rows][N] = activation(x [num_rows][K] times the weight w + bias [N] or null), rounded once. as_bytes: 1
// rounds rows to 8 bits
EXPORT(void, product_int8_f32)
(const float* x, const int8_t* w, const float* bias, float* out, long num_rows, long K, long N, long activation,
 long as_bytes) {
  LEVEL::multiply(x, w, bias, out, num_rows, K, N, activation, as_bytes);
}
EXPORT(void, product_int8_bf16)
(const LEVEL::bfloat16* x, const int8_t* w, const LEVEL::bfloat16* bias, LEVEL::bfloat16* out, long num_rows, long K,
 long N, long activation, long as_bytes) {
  LEVEL::multiply(x, w, bias, out, num_rows, K, N, activation, as_bytes);
}

// w = the weight of values [N][K] times scales [N]
EXPORT(void, pack_int8)(const int8_t* values, const float* scales, int8_t* w, long K, long N) {
  using namespace LEVEL;
  parallel((N + BLOCK - 1) / BLOCK, [&](long block) {
    const long n = block * BLOCK;
    pack_block(values + n * K, scales + n, N - n < BLOCK ? N - n : BLOCK, K, w + block * int8::block_bytes(K));
  });
}
