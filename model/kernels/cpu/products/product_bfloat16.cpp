// Products of rows with bfloat16 weights.
#include "level.h"
#include "products/whole_products.h"

// out [num_rows][N] = activation(x [num_rows][K] W^T + bias), W in the layout of pack_weight_bf16, bias [N] or null.
// arithmetic: 0 widens numbers to float32; 1 multiplies bfloat16 numbers if the level can
EXPORT(void, product_bf16)(const uint16_t* x, const uint32_t* packed, const uint16_t* bias, uint16_t* out,
                           long num_rows, long K, long N, long activation, long arithmetic) {
  using namespace LEVEL;
  if (arithmetic == 1) return multiply<Dot>(x, packed, bias, out, num_rows, K, N, activation);
  multiply<Widened>(x, packed, bias, out, num_rows, K, N, activation);
}

// The same of float32 rows, bias and out.
EXPORT(void, product_f32_bf16)(const float* x, const uint32_t* packed, const float* bias, float* out, long num_rows,
                               long K, long N, long activation) {
  using namespace LEVEL;
  multiply<Widened>(x, packed, bias, out, num_rows, K, N, activation);
}

// The bits of product_bf16 by arithmetic 0, computed slowly from W [N][K].
EXPORT(void, product_plain_bf16)(const uint16_t* x, const uint16_t* weight, const uint16_t* bias, uint16_t* out,
                                 long num_rows, long K, long N, long activation) {
  using namespace LEVEL;
  multiply_plainly(x, weight, bias, out, num_rows, K, N, activation);
}

// The bits of product_f32_bf16, computed slowly from W [N][K].
EXPORT(void, product_plain_f32_bf16)(const float* x, const uint16_t* weight, const float* bias, float* out,
                                     long num_rows, long K, long N, long activation) {
  using namespace LEVEL;
  multiply_plainly(x, weight, bias, out, num_rows, K, N, activation);
}

// packed [ceil(N / 64)][ceil(K / 2)][64][2] = weight [N][K]
EXPORT(void, pack_weight_bf16)(const uint16_t* weight, uint32_t* packed, long K, long N) {
  using namespace LEVEL;
  pack(weight, packed, K, N);
}

// weight [N][K] = the argument of pack_weight_bf16
EXPORT(void, unpack_weight_bf16)(const uint32_t* packed, uint16_t* weight, long K, long N) {
  using namespace LEVEL;
  unpack(packed, weight, K, N);
}
