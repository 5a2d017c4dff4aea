// The blocks of a decoder, and a step of few rows through them. decoder.py has the same structs and fields.
//
// Axes: R rows, d model width, H query heads, K key heads, D head dimension, ff width inside the gated network, B keys
// to a block of the cache, L layers. T: the type of the stream and the cache, float or bfloat16.
#pragma once

#include "attention/attention.h"

namespace LEVEL {

// The layout and arithmetic of a weight: see `Float`, `Widened` and `Dot` in products.h, int8.h, and grouped.h for
// weights in products by `Float`, `Dot` or `Bytes`. INT8_BYTES is INT8 with one digit for each number of a row.
enum Form : long { FLOAT32, WIDENED, DOT, INT8, GROUPED, GROUPED_DOT, GROUPED_BYTES, INT8_BYTES };

struct Product {
  const void* weight;  // [outputs, inputs], in the layout of its form
  const void* bias;    // [outputs] of T, or null
  long form, num_inputs, num_outputs;
};

// Weights of norms are of T, or float32 if the step's norms round once.
struct DecoderLayer {
  Product qkv, out, gate_up, down;    // d to (H + 2K) D, H D to d, d to 2 ff, ff to d
  const void* before_attention;       // [d], of the norm
  const void* before_mlp;             // [d]
  const void* q_norm;                 // [q_norm_width], for parts of that length of the queries; or null
  const void* k_norm;                 // [k_norm_width], likewise of the keys
  const float *cos, *sin;             // [positions, num_rotated], see `Rotation` in rows.h
  long q_norm_width, k_norm_width, num_rotated;
  long key_range;                         // index among the step's key ranges
};

// An adapter's summand of a product: up(down(x)), each rounded as a separate product. Without a weight: no summand.
struct Change {
  Product down, up;      // inputs to its rank, and that to outputs
  const int64_t* ranks;  // [blocks of outputs, 2]: the ranks first <= k < end with numbers other than 0 in `up`
};
// Rows first <= r < end of a step have an adapter.
struct AdaptedRows {
  long first, end;
  const Change* changes;  // [L, 4]: of the products in a layer's order
};

// The memory to which a layer writes.
struct LayerMemory {
  void* keys;      // [block, K, D, B] of T
  void* values;    // [block, K, B, D] of T
  float* queries;  // [R, H, D], kept for hooks on the layer, or null
};

struct DecoderStep {
  const AttentionArguments* key_ranges;  // without queries, keys, values and out; heads and positions are all the same
  const AttentionItem* items;        // [num_items]: each row and key head once
  const int64_t* slots;              // [R]: a row's place in the cache, block * B + place in the block
  const uint8_t* alone;              // [R]: 1 where the row is the only one of its sequence, and its last
  const LayerMemory* memory;         // [L]
  const void* final_norm;            // [d], or null
  void* out;                         // [R, d] of T: the final-normed rows; may be null where final_norm is
  const AdaptedRows* adapted;        // [num_adapted], in order
  long num_items, num_rows, width;   // R, d
  long num_adapted, max_rank;        // of the adapters' products
  long rounds_once;                  // 1: norms round after the product with their weights, which are float32
  float eps;                         // of all norms
  float residual_scale;              // of a product's summand of the stream, rounded before the addition
};

}  // namespace LEVEL
