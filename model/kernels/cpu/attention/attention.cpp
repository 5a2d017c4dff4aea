// Attention over the paged cache, and its single steps, for captures.
#include "attention/attention.h"
#include "level.h"
#include "threads/pool.h"

namespace LEVEL {
namespace {

constexpr long ROWS_TOGETHER = 8;  // rows that are looked at together: they share each load of their keys
struct CapturedRows;  // names the scratch memory of this file
enum Kind : long { PATTERN, SCORES, DOTS };

// out = softmax(scores) V of items [num_items], which threads take in equal shares, in order.
template <class T>
void attend(const AttentionArguments& a, const AttentionItem* items, long num_items) {
  parallel_shares(num_items, 2, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) attend_item<T>(a, items[i], nullptr);
  });
}

// `attention_rows` of some rows and one head: out [num, num_keys].
template <class T>
void rows_of_head(const AttentionArguments& a, const int64_t* chosen, long num, long head, long kind, float* out,
                  long num_keys) {
  const long dim = a.dim, size = a.block_size, key_head = head / (a.num_heads / a.num_key_heads);
  long least = a.first[chosen[0]], most = a.last[chosen[0]];
  for (long r = 1; r < num; ++r) {
    least = a.first[chosen[r]] < least ? a.first[chosen[r]] : least;
    most = a.last[chosen[r]] > most ? a.last[chosen[r]] : most;
  }
  const long first_block = least / size, end_block = (most + size - 1) / size, origin = lanes_down(first_block * size);
  const long stride = end_block > first_block ? lanes_up(end_block * size - origin) : 0;
  float* scores = scratch<CapturedRows, float>(num * stride);
  ScoreRow rows[ROWS_TOGETHER];
  for (long r = 0; r < num; ++r)
    rows[r] = {a.queries + (chosen[r] * a.num_heads + head) * dim, 0, stride, chosen[r], head};
  for (long block = first_block; block < end_block; ++block) {
    const T* tile = static_cast<const T*>(a.keys) + (a.tables[block] * a.num_key_heads + key_head) * dim * size;
    score_tile(rows, num, tile, 0, dim, size, scores, stride, block * size - origin);
  }
  const float unseen = kind == PATTERN ? 0.0f : -INFINITY;
  for (long r = 0; r < num; ++r) {
    const long first = a.first[chosen[r]], last = a.last[chosen[r]];
    float* row = scores + r * stride;
    float* to = out + r * num_keys;
    rows[r].lo = first - origin, rows[r].hi = last - origin;
    if (kind == PATTERN) weigh(a, 0, rows[r], row, origin);
    else if (kind == SCORES && first < last) make_scores(a, rows[r], row, origin);
    for (long k = 0; k < num_keys; ++k) to[k] = first <= k && k < last ? row[k - origin] : unseen;
  }
}

// The attention of chosen rows [num_rows] and heads [num_heads] of one sequence, by the same steps as `attend`: out
// [num_heads, num_rows, num_keys]. Keys outside key_range are 0 in a PATTERN, minus infinity in SCORES and DOTS (q.k
// without scale). a.tables [J] has the sequence's blocks; a.values and a.out are unused, and a.pattern_output is null.
template <class T>
void attention_rows(const AttentionArguments& a, const int64_t* rows, long num_rows, const int64_t* heads,
                    long num_heads, long kind, float* out, long num_keys) {
  const long num_pieces = (num_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  parallel(num_heads * num_pieces, [&](long part) {
    const long h = part / num_pieces, r = part % num_pieces * ROWS_TOGETHER;
    const long num = num_rows - r < ROWS_TOGETHER ? num_rows - r : ROWS_TOGETHER;
    rows_of_head<T>(a, rows + r, num, heads[h], kind, out + (h * num_rows + r) * num_keys, num_keys);
  });
}

// out [num_heads, num_rows, D] = pattern [num_heads, num_rows, num_keys] times the values [block, K, B, D] of one
// sequence with this table [J], added in the order of `attend`; head h uses the values of key_heads[h].
template <class T>
void mix_rows(const float* pattern, const int64_t* key_heads, const T* values, const int32_t* table, T* out,
              long num_heads, long num_rows, long num_keys, long num_key_heads, long dim, long size) {
  const long num_pieces = (num_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  parallel(num_heads * num_pieces, [&](long part) {
    const long h = part / num_pieces, r = part % num_pieces * ROWS_TOGETHER, from = h * num_rows + r;
    const long num = num_rows - r < ROWS_TOGETHER ? num_rows - r : ROWS_TOGETHER;
    float* mixed = scratch<CapturedRows, float>(num * dim);
    memset(mixed, 0, num * dim * sizeof(float));
    ScoreRow rows[ROWS_TOGETHER];
    for (long i = 0; i < num; ++i) rows[i] = {nullptr, 0, num_keys, r + i, h};
    for (long start = 0; start < num_keys; start += size) {
      const T* tile = values + (table[start / size] * num_key_heads + key_heads[h]) * size * dim;
      mix_tile(rows, num, pattern + from * num_keys, num_keys, start, tile, 0, dim, size, mixed);
    }
    for (long i = 0; i < num; ++i) store_row(mixed + i * dim, dim, out + (from + i) * dim);
  });
}

}  // namespace
}  // namespace LEVEL

using LEVEL::AttentionArguments;
using LEVEL::AttentionItem;

#define EXPORT_FOR(T, SUFFIX)                                                                                         \
  EXPORT(void, attend_##SUFFIX)                                                                                       \
  (const AttentionArguments* arguments, const AttentionItem* items, long num_items) {                                 \
    LEVEL::attend<T>(*arguments, items, num_items);                                                                   \
  }                                                                                                                   \
  EXPORT(void, attention_rows_##SUFFIX)                                                                               \
  (const AttentionArguments* arguments, const int64_t* rows, long num_rows, const int64_t* heads, long num_heads,     \
   long kind, float* out, long num_keys) {                                                                            \
    LEVEL::attention_rows<T>(*arguments, rows, num_rows, heads, num_heads, kind, out, num_keys);                      \
  }                                                                                                                   \
  EXPORT(void, mix_rows_##SUFFIX)                                                                                     \
  (const float* pattern, const int64_t* key_heads, const T* values, const int32_t* table, T* out, long num_heads,     \
   long num_rows, long num_keys, long num_key_heads, long dim, long block_size) {                                     \
    LEVEL::mix_rows(pattern, key_heads, values, table, out, num_heads, num_rows, num_keys, num_key_heads, dim,        \
                    block_size);                                                                                      \
  }
EXPORT_FOR(float, f32)
EXPORT_FOR(LEVEL::bfloat16, bf16)

// out = softmax of each row of scores [num_rows, num_keys], with the bits of `attend`. sinks: null, or [num_heads];
// each head has an equal share of the rows, in order.
EXPORT(void, softmax_rows_f32)
(const float* scores, const float* sinks, float* out, long num_rows, long num_keys, long num_heads) {
  using namespace LEVEL;
  if (num_keys == 0) return;
  parallel(num_rows, [&](long r) {
    float* row = scratch<CapturedRows, float>(lanes_up(num_keys));
    memcpy(row, scores + r * num_keys, num_keys * sizeof(float));
    for (long k = num_keys; k < lanes_up(num_keys); ++k) row[k] = -INFINITY;
    softmax(row, lanes_up(num_keys), sinks ? sinks + r * num_heads / num_rows : nullptr);
    memcpy(out + r * num_keys, row, num_keys * sizeof(float));
  });
}
