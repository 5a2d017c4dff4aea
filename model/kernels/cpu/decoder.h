// The blocks of a decoder as a program of steps, and its run. decoder.py and
// program/translation.py have the same structs and fields.
//
// Axes: R rows, d model width, H query heads, K key heads, D head dimension, ff width inside the gated network, B keys
// to a block of the cache, L layers. T: the type of the stream and the cache, float or bfloat16.
#pragma once

#include "attention/attention.h"
#include "delta.h"

namespace LEVEL {

// The layout and arithmetic of a weight: see `Float`, `Widened` and `Dot` in products.h, int8.h, and grouped.h for
// weights in products by `Float`, `Dot` or `Bytes`. INT8_BYTES is INT8 with one digit for each number of a row.
enum Form : long { FLOAT32, WIDENED, DOT, INT8, GROUPED, GROUPED_DOT, GROUPED_BYTES, INT8_BYTES };

struct Product {
  const void* weight;  // [outputs, inputs], in the layout of its form
  const void* bias;    // [outputs] of T, or null
  long form, num_inputs, num_outputs;
};

// Of rows, or of parts of `width` numbers of a row. The weight is of T, or float32 for RMS_ONCE, which rounds only
// after the product with it; the bias, of LAYER, is of T or null.
// WEIGHTS: only the product with the weight.
enum NormKind : long { RMS, RMS_ONCE, LAYER, WEIGHTS };
struct Norm {
  const void *weight, *bias;  // [width]; a null weight is no norm
  long kind, width;
  float eps;
};

// The numbers of a row between steps: [R, numbers of the last step that wrote them]. STREAM is the residual stream.
enum Register : long { STREAM, NORMED, WIDE, MIXED, ASIDE, OUT, GIVEN, GIVEN_WIDE, GIVEN_MIXED, NUM_REGISTERS };
// With several residual streams, STREAM is the first one and `others` of Rows are the others.
// The registers from GIVEN on have a row for each row and expert that is chosen for it, sorted by expert.

// NORM      to = norm(from)
// MULTIPLY  to = activation(product of from), plus the changes of adapters if there is no activation; then an ADD,
//           with `adds`
// ENTER     WIDE holds (H + 2K) D, and if `gated` H D gates after the queries: norms and rotates the heads, and writes
//           keys and values to the layer's cache
// CONVOLVE  to = C * conv(B * x), where WIDE holds B, C and x; inputs before the rows are in the layer's states
// QUERY     WIDE holds queries, H D, of keys in the cache: norms and rotates them
// ATTEND    to = the heads' mixed values
// READY     nothing but `next`
// GATE      to = activation(gate) * up; from holds gate, then up
// ADD       NORMED *= scale; STREAM += NORMED
// GATE_TOKENS  to = activation(from) * the row's inputs of the layer
// JOIN      to = NORMED + ASIDE; with `adds`, STREAM += NORMED
// TANH      to = tanh(from), `channels` numbers
// PREDICT   each stream's prediction = the sum of all streams times their weights in WIDE, plus itself; STREAM = the
//           first prediction
// MERGE     STREAM = (STREAM + NORMED + ASIDE) / sqrt(2)
// CORRECT   each stream = its prediction + (STREAM - the first prediction) * (1 + its weight in WIDE)
// ADD_OTHERS  the other streams += NORMED
// SCALE     from *= scale
// ROUTE     chooses experts for each row by its logits in WIDE
// SORT      sorts the pairs of row and expert
// GIVE      GIVEN = the pairs' rows of NORMED
// EXPERTS   to = activation(products of from, of each pair's expert)
// COMBINE   NORMED = the sum of a row's pairs in GIVEN times their weights; with `adds`, plus ASIDE
// GATE_ASIDE  ASIDE *= the sigmoid of MIXED, a number a row
// GATE_HEADS  MIXED *= the sigmoids of WIDE's gates
// APPLY_DELTA  to = the gated delta net's values, where WIDE holds C inputs of the convolution, gates, strengths, steps
// TAKE      copies numbers of registers to memory
// Each intermediate result is rounded to T.
enum Op : long {
  NORM, MULTIPLY, ENTER, ATTEND, READY, GATE, ADD, JOIN, SCALE, ROUTE, SORT, GIVE, EXPERTS, COMBINE, GATE_ASIDE, QUERY,
  CONVOLVE, GATE_HEADS, APPLY_DELTA, GATE_TOKENS, TANH, PREDICT, MERGE, CORRECT, ADD_OTHERS, TAKE
};

// Some columns of some rows of a register, for hooks.
struct Taken {
  const int64_t* rows;  // [num_rows]
  void* memory;         // [num_rows, width] of T
  long num_rows, from, row_width, first, width;  // first: the first column
};

// A gated delta net, without its products and its convolution.
struct DeltaNet {
  DeltaSizes sizes;
  const float *rates, *biases;  // [V]: of the decay
  Norm norm;                    // of a value head
};

struct Step {
  long op, from, to, layer;
  const Step* next;      // the product for which the rows of `to` (of READY: of `from`) are made ready, or null
  Product product;       // of MULTIPLY; of EXPERTS: the first; all have the same shape and form
  const Product* experts;  // of EXPERTS
  long number, adds;     // of MULTIPLY: its place among the products; 1: it (or JOIN) adds to the stream, or COMBINE adds ASIDE
  long activation;       // of MULTIPLY, EXPERTS, GATE and GATE_TOKENS
  long num_experts, num_chosen, normalized;  // of ROUTE, SORT, EXPERTS; normalized: a row's weights sum to 1
  const float* expert_scales;  // of ROUTE: factors of the experts' outputs, [num_experts], or null
  long num_streams;      // of PREDICT, CORRECT, ADD_OTHERS
  float deviations;      // of GATE: of the least number of the gate from its mean, see `drop_small_row`, or -infinity
  float limit, alpha;    // of GATE: of a clamped gate; limit 0: the gate is activation(gate) * up
  Norm norm;             // of NORM; of ENTER and QUERY: of the queries
  Norm k_norm, v_norm;   // of ENTER
  const float *cos, *sin;  // of ENTER and QUERY: [positions, num_rotated], see `Rotation` in rows.h
  long num_rotated;
  const float *bias, *sinks;   // of ATTEND, as in `AttentionArguments`
  long bias_width;             // of ATTEND
  long key_range;              // of ENTER, QUERY, ATTEND, GATE_HEADS: the index among the step's key ranges, from 1 on
  long is_cross, has_keys;     // of QUERY, ATTEND: 1 of cross attention; 0 if all keys are in the cache, after QUERY
  long gated;                  // of ENTER, ATTEND, GATE_HEADS
  const DeltaNet* delta;       // of APPLY_DELTA
  const float* taps;           // of CONVOLVE, APPLY_DELTA: [num_kept + 1, channels], the row's own last; its bias is `bias`
  long num_kept, channels;
  float score_scale, softcap;  // of ATTEND
  float scale;           // of MULTIPLY with `adds`, ADD and SCALE
  const Taken* taken;    // [num_taken], of TAKE
  long num_taken;
};

// An adapter's summand of a product: up(down(x)), each rounded as a separate product. Without a weight: no summand.
struct Change {
  Product down, up;      // inputs to its rank, and that to outputs
  const int64_t* ranks;  // [blocks of outputs, 2]: the ranks first <= k < end with numbers other than 0 in `up`
};
// Rows first <= r < end of a step have an adapter.
struct AdaptedRows {
  long first, end;
  const Change* changes;  // of each product, by its number
};

// The memory to which a layer writes.
struct LayerMemory {
  void* keys;      // [block, K, D, B] of T
  void* values;    // [block, K, B, D] of T
  float* queries;  // [R, H, D], kept for hooks on the layer, or null
  const PatternMap* patterns;  // [sequence, H], or null if no request wants them
  void* inputs;    // [state, num_kept, channels] of T, of a layer with a convolution, oldest first
  float* memory;   // [state, V, k, v], of a layer with a delta net
};

// Pieces of attention, each row and key head once, in lists; threads share each list.
struct Items {
  const AttentionItem* items;
  const int64_t* lists;  // [num_lists + 1]: the first item of each list, and the number of items
  long num_lists;
};

struct Rows {
  // Without queries, keys, values, out, rule; the first one has the positions for rotations, and no keys.
  const AttentionArguments* key_ranges;
  const Items* items;                // of each key range
  const int64_t* slots;              // [R]: a row's place in the cache, block * B + place in the block
  const uint8_t* alone;              // [R]: 1 where the row is the only one of its sequence, and its last
  const LayerMemory* memory;         // [L]
  const Span* spans;                 // [num_spans]
  void* out;                         // [R, d] of T: the register OUT
  const void* of_tokens;             // [R, num_token_layers, inputs of GATE_TOKENS] of T: a row's inputs of each layer
  void* others;                      // [streams - 1, R, d] of T: the other residual streams
  const AdaptedRows* adapted;        // [num_adapted], in order
  long num_rows, width;              // R, d
  long num_adapted, max_rank;        // of the adapters' products
  long num_spans, num_token_layers;
};

}  // namespace LEVEL
