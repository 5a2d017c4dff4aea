// Attention over the paged cache, of one row or of a few rows that share their keys.
//
// Every number depends only on its own row. A score is one chain of multiply-adds over the head dimension. A softmax
// sums lane by lane over the row's keys, and a key outside key_range counts exactly 0. A mixed value is one chain over
// the row's keys in order. So the bits of a row are independent of the batch, of the chunks of its prompt, and of the
// blocks of its keys.
//
// Axes: T query rows, H query heads, K key heads, G = H / K query heads to a key head, D head dimension, B keys to a
// block, J blocks of a sequence. Keys are cached [block, K, D, B], so that the lanes of a vector have adjacent keys for
// one query; values [block, K, B, D], so that they have adjacent dimensions for one weight. Scores have columns: the
// first column is key `origin`, a multiple of the lanes, so that the lane of a key does not depend on other rows.
#pragma once

#include <math.h>

#include "attention/attention_tiles.h"
#include "threads/scratch.h"

namespace LEVEL {

constexpr long BYTES_AHEAD = 16384;  // distance at which keys and values are prefetched

// Destination of the patterns of one sequence and head.
struct PatternMap {
  char* numbers;      // of the row `first_row` and key 0; null if no request wants them
  long first_row;     // the sequence's first row of the batch
  long row_bytes;     // from one row to the next
  long number_bytes;  // 4: float32, 2: float16
};

// Same fields as `AttentionArguments` of attention.py. The cache's type is float or bfloat16.
struct AttentionArguments {
  const float* queries;      // [T, H, D]
  void* keys;                // [block, K, D, B], of the cache's type
  void* values;              // [block, K, B, D], likewise
  void* out;                 // [T, H, D], likewise
  const int32_t* tables;     // [sequence, J]: the blocks of each sequence's keys, in order
  const int64_t* positions;  // [T]: each row's position in its sequence
  const int64_t* first;      // [T]: row t sees the keys first[t] <= k < last[t]; neither falls from a row of a sequence
  const int64_t* last;       // [T]  to the next
  const float* bias;         // [H, bias_width]: bias[h, key - position + reach - 1] is added to a score
  const PatternMap* pattern_output;  // [sequence, H], or null if no request wants patterns
  const float* sinks;        // [H]: a score of no key, which takes its part of a row's weight; null: there are none
  long num_heads, num_key_heads, dim, block_size;  // H, K, D, B
  long table_width;          // J
  long bias_width;           // 2 * reach - 1, or 0: no bias
  float scale;               // multiplies q.k
  float softcap;             // score = softcap * tanh(score / softcap), before the bias; 0: not
};

// A piece of the work: some rows of one sequence and some heads.
struct AttentionItem {
  int32_t sequence, first_row, num_rows, first_key_head, num_key_heads;
};

// In place, the dots of a row become scores, in the columns it sees; the others of their vectors become minus infinity.
// `origin` is the key of the first column.
inline void make_scores(const AttentionArguments& a, const ScoreRow& r, float* row, long origin) {
  const long lo = r.lo, hi = r.hi;
  const long begin = lanes_down(lo), end = lanes_up(hi);
  if (a.softcap > 0)
    for (long k = begin; k < end; k += LANES)
      store(row + k, a.softcap * tanh(load(row + k) * a.scale / a.softcap));
  else
    for (long k = begin; k < end; k += LANES) store(row + k, load(row + k) * a.scale);
  if (a.bias_width > 0) {
    const float* near = a.bias + r.head * a.bias_width + (a.bias_width + 1) / 2 - 1 - (a.positions[r.row] - origin);
    for (long k = lo; k < hi; ++k) row[k] += near[k];
  }
  store(row + begin, only_lanes(load(row + begin), lo - begin, hi - begin, -INFINITY));
  store(row + end - LANES, only_lanes(load(row + end - LANES), lo - end + LANES, hi - end + LANES, -INFINITY));
}

// Softmax in place of row [num], whole vectors: lane by lane, then over the lanes. sink: null, or one more score, which
// has no column.
inline void softmax(float* row, long num, const float* sink) {
  Vector top = load(row);
  for (long k = LANES; k < num; k += LANES) {
    const Vector scores = load(row + k);
    top = where_greater(scores, top, scores, top);
  }
  const float most = largest_lane(top);
  const Vector largest = all_lanes(sink && *sink > most ? *sink : most);
  Vector total = sink ? only_lanes(exp(all_lanes(*sink) - largest), 0, 1, 0.0f) : zeros();
  for (long k = 0; k < num; k += LANES) {
    const Vector weights = exp(load(row + k) - largest);
    store(row + k, weights);
    total = total + weights;
  }
  const Vector inverse = all_lanes(1.0f / sum_of_lanes(total));
  for (long k = 0; k < num; k += LANES) store(row + k, load(row + k) * inverse);
}

// p[i] = weights[i] as float16, rounded to the nearest, the even one of two.
inline void store_halves(char* p, const float* weights, long count) {
  for (long i = 0; i < count; i += LANES) {
    alignas(64) float some[LANES] = {};
    const long num = count - i < LANES ? count - i : LANES;
    memcpy(some, weights + i, num * sizeof(float));
    const Vector v = load(some);
    for (int part = 0; part < PARTS; ++part) {
#if defined(__AVX512F__)
      const auto halves = _mm512_maskz_cvtps_ph(0xFFFF, (__m512)v.part[part], _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
      const auto halves = _mm256_cvtps_ph((__m256)v.part[part], _MM_FROUND_TO_NEAREST_INT);
#else
      const auto halves = vcvt_f16_f32((float32x4_t)v.part[part]);
#endif
      memcpy(reinterpret_cast<char*>(some) + part * sizeof halves, &halves, sizeof halves);
    }
    memcpy(p + 2 * i, some, 2 * num);
  }
}

// Turns the dots of a row into weights, in place, and writes them to the pattern output too; `origin` as above.
inline void weigh(const AttentionArguments& a, long sequence, const ScoreRow& r, float* row, long origin) {
  if (r.hi <= r.lo) return;  // it sees nothing
  make_scores(a, r, row, origin);
  softmax(row + lanes_down(r.lo), lanes_up(r.hi) - lanes_down(r.lo), a.sinks ? a.sinks + r.head : nullptr);
  if (!a.pattern_output) return;
  const PatternMap& map = a.pattern_output[sequence * a.num_heads + r.head];
  if (!map.numbers) return;
  char* to = map.numbers + (r.row - map.first_row) * map.row_bytes + (origin + r.lo) * map.number_bytes;
  if (map.number_bytes == 2) store_halves(to, row + r.lo, r.hi - r.lo);
  else memcpy(to, row + r.lo, (r.hi - r.lo) * sizeof(float));
}

// out [dim] = mixed [dim], rounded to the type of out.
template <class T>
ALWAYS_INLINE void store_row(const float* mixed, long dim, T* out) {
  const long whole = lanes_down(dim);
  for (long d = 0; d < whole; d += LANES) store(out + d, load(mixed + d));
  for (long d = whole; d < dim; ++d) store_one(out + d, mixed[d]);
}

// out = softmax(scores) V of the rows and heads of one item.
//
// newest: null; or, where the item has one row, its sequence's last, the keys [K, D] and then the values [K, D] of it,
// which are not in the cache yet. They enter with the block they belong to, which has to come near for this anyhow.
template <class T>
void attend_item(const AttentionArguments& a, const AttentionItem& item, const T* newest) {
  const long dim = a.dim, size = a.block_size, piece = dim * size, group = a.num_heads / a.num_key_heads;
  const long first_row = item.first_row, num_rows = item.num_rows;
  const int32_t* table = a.tables + item.sequence * a.table_width;
  const long first_block = a.first[first_row] / size;  // no row reads earlier blocks
  const long end_block = (a.last[first_row + num_rows - 1] + size - 1) / size;
  const long origin = lanes_down(first_block * size);  // key of the first column
  const long num = num_rows * group;  // rows of scores that read the same keys
  const long place = a.positions[first_row] % size;  // of `newest` in its block
  const long stride = end_block > first_block ? lanes_up(end_block * size - origin) : 0;
  const long end_head = item.first_key_head + item.num_key_heads;
  // A single row reads its part of a block for all heads before the next block. That part is contiguous, which uses
  // more of the memory's bandwidth than one head after the other.
  const long together = num_rows == 1 ? item.num_key_heads : 1;
  // During the work on one tile, a later tile is prefetched, at most the same head's tile in the next block.
  const long tiles_ahead = BYTES_AHEAD / (piece * long(sizeof(T)));
  const long distance = tiles_ahead < 1 ? 1 : tiles_ahead < together ? tiles_ahead : together;
  ScoreRow* rows = scratch<AttentionArguments, ScoreRow>(together * num);
  float* scores = scratch<AttentionArguments, float>(together * num * (stride + dim));
  float* mixed = scores + together * num * stride;
  for (long head = item.first_key_head; head < end_head; head += together) {
    for (long i = 0; i < together * num; ++i) {
      const long row = first_row + i % num / group, query_head = (head + i / num) * group + i % group;
      const float* query = a.queries + (row * a.num_heads + query_head) * dim;
      rows[i] = {query, a.first[row] - origin, a.last[row] - origin, row, query_head};
    }
    const auto tile_at = [&](T* cache, long block) { return cache + (table[block] * a.num_key_heads + head) * piece; };
    const auto each_tile = [&](T* cache, T* after, auto work) {
      for (long block = first_block; block < end_block; ++block) {
        T* tile = tile_at(cache, block);
        T* next = block + 1 < end_block ? tile_at(cache, block + 1) : after ? after : tile;
        for (long h = 0; h < together; ++h) {
          const long other = h + distance;
          const T* later = other < together ? tile + other * piece : next + (other - together) * piece;
          work(h, block + 1 == end_block, tile + h * piece, block * size - origin, later - (tile + h * piece));
        }
      }
    };
    T* values = static_cast<T*>(a.values);
    T* first_values = end_block > first_block ? tile_at(values, first_block) : nullptr;
    each_tile(static_cast<T*>(a.keys), first_values, [&](long h, bool is_last, T* tile, long start, long ahead) {
      if (newest && is_last)
        for (long d = 0; d < dim; ++d) tile[d * size + place] = newest[(head + h) * dim + d];
      score_tile(rows + h * num, num, tile, ahead, dim, size, scores + h * num * stride, stride, start);
    });
    for (long i = 0; i < together * num; ++i) weigh(a, item.sequence, rows[i], scores + i * stride, origin);
    memset(mixed, 0, together * num * dim * sizeof(float));
    each_tile(values, static_cast<T*>(nullptr), [&](long h, bool is_last, T* tile, long start, long ahead) {
      if (newest && is_last)
        memcpy(tile + place * dim, newest + (a.num_key_heads + head + h) * dim, dim * sizeof(T));
      mix_tile(rows + h * num, num, scores + h * num * stride, stride, start, tile, ahead, dim, size,
               mixed + h * num * dim);
    });
    for (long i = 0; i < together * num; ++i)
      store_row(mixed + i * dim, dim, static_cast<T*>(a.out) + (rows[i].query - a.queries));
  }
}

}  // namespace LEVEL
