// Rows of tables: gathered, added and normalised. A row's bits depend only on its token and position.
#include "threads/pool.h"
#include "rows.h"

namespace LEVEL {
namespace {

constexpr long ROWS_FROM = 64;  // rows that are shared among threads
constexpr long BLOCK = 64;      // rows of a table that are stored side by side
constexpr long AHEAD = 4;       // rows: each may be anywhere in memory, and to wait for it doubles the time of its norm

// Row `id` of a table in blocks of 64 rows. Words of 4 bytes of the 64 rows are adjacent: one float32 or two bfloat16
// of a row, then of the next row. table [blocks, width / pair, 64, pair]; out [width]
template <class X, class Y>
ALWAYS_INLINE void gather_row(const X* table, long id, long width, Y* out) {
  constexpr long pair = sizeof(uint32_t) / sizeof(X);
  const long whole = width / pair * pair;
  const X* from = table + id / BLOCK * BLOCK * ((width + pair - 1) / pair * pair) + id % BLOCK * pair;
#pragma GCC unroll 8
  for (long i = 0; i < whole; i += pair) {
    uint32_t word;
    memcpy(&word, from + i * BLOCK, sizeof word);
    if constexpr (sizeof(X) == sizeof(Y)) memcpy(out + i, &word, sizeof word);
    else out[i] = widen(bfloat16(word)), out[i + 1] = widen(bfloat16(word >> 16));
  }
  if (whole < width) store_one(out + whole, widen(from[whole * BLOCK]));
}

template <class X, class Y>
void gather_rows(const X* table, const long* ids, long num_rows, long width, Y* out) {
  parallel_shares(num_rows, ROWS_FROM, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) gather_row(table, ids[row], width, out + row * width);
  });
}

template <class X>
void embed(const long* ids, const long* types, const long* places, const X* tokens, const X* token_types,
           const X* positions, const X* weight, const X* bias, X* out, long num_rows, long width, float eps) {
  parallel_shares(num_rows, ROWS_FROM, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) {
      const X *token = tokens + ids[row] * width, *position = positions ? positions + places[row] * width : nullptr;
      const X* token_type = types ? token_types + types[row] * width : token_types;
      if (row + AHEAD < end) prefetch(tokens + ids[row + AHEAD] * width, width);
      X* sum = out + row * width;
      each_number(width, [&]<class N>(long i) {
        N number = take<N>(token + i);
        if (token_type) number = number + take<N>(token_type + i);
        if (position) number = rounded<X>(number) + take<N>(position + i);
        put(sum + i, number);
      });
      layer_norm_row(sum, weight, bias, width, eps, sum);
    }
  });
}

}  // namespace
}  // namespace LEVEL

// out = rows ids of a table [rows, width] that is stored in blocks: table [blocks, width, 64]; ids [num_rows];
// out [num_rows, width]
EXPORT(void, gather_rows_f32)(const float* table, const long* ids, long num_rows, long width, float* out) {
  LEVEL::gather_rows(table, ids, num_rows, width, out);
}
// The same of table [blocks, half of width rounded up, 64, 2].
EXPORT(void, gather_rows_bf16)(const LEVEL::bfloat16* table, const long* ids, long num_rows, long width,
                               LEVEL::bfloat16* out) {
  LEVEL::gather_rows(table, ids, num_rows, width, out);
}
EXPORT(void, gather_rows_bf16_to_f32)(const LEVEL::bfloat16* table, const long* ids, long num_rows, long width,
                                      float* out) {
  LEVEL::gather_rows(table, ids, num_rows, width, out);
}

// out = layer norm of row ids[row] of tokens + row types[row] of token_types + row places[row] of positions.
// ids, types, places [num_rows], where types is null if all are 0; tokens [vocab, width]; token_types [types, width]
// or null; positions [context, width] or null; weight [width]; bias [width] or null; out [num_rows, width]
EXPORT(void, embed_f32)(const long* ids, const long* types, const long* places, const float* tokens,
                        const float* token_types, const float* positions, const float* weight, const float* bias,
                        float* out, long num_rows, long width, float eps) {
  LEVEL::embed(ids, types, places, tokens, token_types, positions, weight, bias, out, num_rows, width, eps);
}
EXPORT(void, embed_bf16)(const long* ids, const long* types, const long* places, const LEVEL::bfloat16* tokens,
                         const LEVEL::bfloat16* token_types, const LEVEL::bfloat16* positions,
                         const LEVEL::bfloat16* weight, const LEVEL::bfloat16* bias, LEVEL::bfloat16* out,
                         long num_rows, long width, float eps) {
  LEVEL::embed(ids, types, places, tokens, token_types, positions, weight, bias, out, num_rows, width, eps);
}
