// Products of float32 rows with float32 weights.
#include "level.h"
#include "products/whole_products.h"

// out [num_rows][N] = activation(x [num_rows][K] W^T + bias), W as pack_weight_f32 lays it, bias [N] or null
EXPORT(void, product_f32)(const float* x, const uint32_t* packed, const float* bias, float* out, long num_rows, long K,
                          long N, long activation) {
  using namespace LEVEL;
  multiply<Float>(x, packed, bias, out, num_rows, K, N, activation);
}

// The bits of product_f32, computed slowly from W [N][K].
EXPORT(void, product_plain_f32)(const float* x, const float* weight, const float* bias, float* out, long num_rows,
                                long K, long N, long activation) {
  using namespace LEVEL;
  multiply_plainly(x, weight, bias, out, num_rows, K, N, activation);
}

// packed [ceil(N / 64)][K][64] = weight [N][K]
EXPORT(void, pack_weight_f32)(const float* weight, uint32_t* packed, long K, long N) {
  using namespace LEVEL;
  pack(weight, packed, K, N);
}

// weight [N][K] = the argument of pack_weight_f32
EXPORT(void, unpack_weight_f32)(const uint32_t* packed, float* weight, long K, long N) {
  using namespace LEVEL;
  unpack(packed, weight, K, N);
}
