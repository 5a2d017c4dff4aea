// The parts of a gated delta net as separate kernels, for rows between which hooks may act. `APPLY_DELTA` of decoder.h
// computes the same bits.
#include "delta.h"

#include "threads/pool.h"

namespace LEVEL {
namespace {

template <class X>
void delta_factors(const X* strengths, const X* steps, const float* rates, const float* biases, long num_rows,
                   long num_heads, X* beta, float* decay) {
  for (long r = 0; r < num_rows; ++r) {
    const long row = r * num_heads;
    each_number(num_heads, [&]<class N>(long i) {
      put(beta + row + i, sigmoid(take<N>(strengths + row + i)));
      put(decay + row + i, decay_of(take<N>(steps + row + i), take<N>(rates + i), take<N>(biases + i)));
    });
  }
}

template <class X>
void delta_rule(const X* q, const X* k, const X* v, const X* beta, const float* decay, const Span* spans,
                long num_spans, const DeltaSizes& sizes, float* memory, X* z) {
  const long heads = sizes.num_key_heads, shared = sizes.num_shared(), values = sizes.num_value_heads;
  parallel_shares(num_spans * heads, 2, [&](long begin, long end) {
    for (long item = begin; item < end; ++item) {
      const Span& span = spans[item / heads];
      const long h = item % heads;
      SpanMatrices own(memory, span, sizes, h);
      struct Strengths;
      float* strengths = scratch<Strengths, float>(shared);
      for (long r = span.first; r < span.end; ++r) {
        const long key = r * heads + h, value = r * values + h * shared;
        for (long s = 0; s < shared; ++s) strengths[s] = widen(beta[value + s]);
        update_matrices(q + key * sizes.key_dim, k + key * sizes.key_dim, v + value * sizes.value_dim, strengths,
                        decay + value, sizes, own.old, own.matrices, z + value * sizes.value_dim);
        own.old = own.matrices;
        if (r % 64 == 63) lightwell_note_progress();
      }
    }
  });
}

}  // namespace
}  // namespace LEVEL

// beta = sigmoid(strengths), decay = exp(-rates * softplus(steps + biases)): strengths, steps, beta, decay
// [num_rows, num_heads]; rates, biases [num_heads]
EXPORT(void, delta_factors_f32)(const float* strengths, const float* steps, const float* rates, const float* biases,
                                long num_rows, long num_heads, float* beta, float* decay) {
  LEVEL::delta_factors(strengths, steps, rates, biases, num_rows, num_heads, beta, decay);
}
EXPORT(void, delta_factors_bf16)(const LEVEL::bfloat16* strengths, const LEVEL::bfloat16* steps, const float* rates,
                                 const float* biases, long num_rows, long num_heads, LEVEL::bfloat16* beta,
                                 float* decay) {
  LEVEL::delta_factors(strengths, steps, rates, biases, num_rows, num_heads, beta, decay);
}

// z [rows, V, v] of q, k [rows, K, k], v [rows, V, v], beta and decay [rows, V]; the spans' matrices in memory
// [state, V, k, v] are read and written.
EXPORT(void, delta_rule_f32)(const float* q, const float* k, const float* v, const float* beta, const float* decay,
                             const LEVEL::Span* spans, long num_spans, const LEVEL::DeltaSizes* sizes, float* memory,
                             float* z) {
  LEVEL::delta_rule(q, k, v, beta, decay, spans, num_spans, *sizes, memory, z);
}
EXPORT(void, delta_rule_bf16)(const LEVEL::bfloat16* q, const LEVEL::bfloat16* k, const LEVEL::bfloat16* v,
                              const LEVEL::bfloat16* beta, const float* decay, const LEVEL::Span* spans, long num_spans,
                              const LEVEL::DeltaSizes* sizes, float* memory, LEVEL::bfloat16* z) {
  LEVEL::delta_rule(q, k, v, beta, decay, spans, num_spans, *sizes, memory, z);
}
