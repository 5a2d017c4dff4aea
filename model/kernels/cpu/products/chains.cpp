// Sums of products by chains, for every number of rows (see products.h).
#include "products/products.h"

namespace LEVEL {

template AddRows<Float> add_rows<Float>;
template AddRows<Widened> add_rows<Widened>;
#if defined(__AVX512BF16__)
template AddRows<Paired> add_rows<Paired>;
#endif

}  // namespace LEVEL
