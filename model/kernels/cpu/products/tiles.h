// Sums by the matrix unit of a CPU with AMX. It has eight tiles of 16 rows of 64 bytes. One instruction adds the
// products of a tile of rows with a tile of weights to a tile of sums, 16 rows by 16 columns. Bytes and bfloat16 have
// the same layout: 64 bytes of a row, 64 or 32 inputs, are multiplied with 16 steps of a block; each step has 4 or 2
// inputs of a column in a word.
//
// A sum has one order, the order of the inputs in pieces of 64 bytes. For bfloat16 the even inputs of a piece are one
// chain of multiply-adds from 0 and the odd inputs another; both are added to the sum, and a subnormal number counts as
// 0. So the bits of a row are independent of other rows.
//
// The use of tiles, and of whole weights without division for the first cache, was measured with earlier kernels; these
// kernels are unmeasured in bfloat16.
#pragma once

#include "products/blocks.h"
#include "vectors.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // so Clang before 16 calls it
#define TILES
#endif

namespace LEVEL {

constexpr long TILE_ROWS = 16;

#if defined(TILES)
// The operand of LDTILECFG: eight whole tiles. Fewer rows would not be faster, since the weights limit the speed.
struct TileShapes {
  uint8_t palette, start_row, none[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
alignas(64) constexpr TileShapes TILE_SHAPES = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
constexpr long STEP = 4 * BLOCK;  // bytes from a step of a block, or a row of sums, to the next
constexpr long TILE_STEPS = 16;   // of a block, that 64 bytes of a row meet

// Tiles are in use from one to the other, and dearer to switch threads with.
ALWAYS_INLINE void take_tiles() { _tile_loadconfig(&TILE_SHAPES); }
ALWAYS_INLINE void give_up_tiles() { _tile_release(); }

ALWAYS_INLINE void fetch_line_of_steps(const char* w) {
  for (long step = 0; step < TILE_STEPS; ++step) __builtin_prefetch(w + step * STEP);
}

// A tile's number is part of the instruction, and with GCC of the text of the program.
#define ADD_PRODUCTS(SUMS, ROWS, WEIGHTS)                      \
  if constexpr (IS_INT8) _tile_dpbusd(SUMS, ROWS, WEIGHTS); \
  else _tile_dpbf16ps(SUMS, ROWS, WEIGHTS)

// Sixteen rows x, `stride` bytes apart, times a block w, or its first 32 columns unless WIDE. Whole steps of w are
// read; after them `last` in place of w where a row's bytes end in the middle of them, else null.
template <bool IS_INT8, bool WIDE>
inline void sum_tile(const char* x, long stride, const char* start, const char* w, const char* last, long whole_bytes,
                     char* sums) {
  _tile_loadd(0, start, 0);  // the same for each row
  _tile_loadd(1, start + LINE, 0);
  if constexpr (WIDE) {
    _tile_loadd(2, start + 2 * LINE, 0);
    _tile_loadd(3, start + 3 * LINE, 0);
  }
  const auto add = [&](const char* at) __attribute__((always_inline)) {
    _tile_loadd(4, x, stride);
    fetch_line_of_steps(at + AHEAD);
    _tile_loadd(5, at, STEP);
    ADD_PRODUCTS(0, 4, 5);
    fetch_line_of_steps(at + AHEAD + LINE);
    _tile_loadd(6, at + LINE, STEP);
    ADD_PRODUCTS(1, 4, 6);
    if constexpr (WIDE) {
      fetch_line_of_steps(at + AHEAD + 2 * LINE);
      _tile_loadd(7, at + 2 * LINE, STEP);
      ADD_PRODUCTS(2, 4, 7);
      fetch_line_of_steps(at + AHEAD + 3 * LINE);
      _tile_loadd(5, at + 3 * LINE, STEP);
      ADD_PRODUCTS(3, 4, 5);
    }
  };
  for (const char* end = x + whole_bytes; x < end; x += LINE, w += TILE_STEPS * STEP) add(w);
  if (last) add(last);
  _tile_stored(0, sums, STEP);
  _tile_stored(1, sums + LINE, STEP);
  if constexpr (WIDE) {
    _tile_stored(2, sums + 2 * LINE, STEP);
    _tile_stored(3, sums + 3 * LINE, STEP);
  }
}

// Thirty-two rows times the first 32 columns, likewise.
template <bool IS_INT8>
inline void sum_two_tiles(const char* x, long stride, const char* start, const char* w, const char* last,
                          long whole_bytes, char* sums) {
  _tile_loadd(0, start, 0);
  _tile_loadd(1, start + LINE, 0);
  _tile_loadd(2, start, 0);
  _tile_loadd(3, start + LINE, 0);
  const auto add = [&](const char* at) __attribute__((always_inline)) {
    _tile_loadd(4, x, stride);
    fetch_line_of_steps(at + AHEAD);
    _tile_loadd(6, at, STEP);
    ADD_PRODUCTS(0, 4, 6);
    fetch_line_of_steps(at + AHEAD + LINE);
    _tile_loadd(7, at + LINE, STEP);
    ADD_PRODUCTS(1, 4, 7);
    _tile_loadd(5, x + TILE_ROWS * stride, stride);
    ADD_PRODUCTS(2, 5, 6);
    ADD_PRODUCTS(3, 5, 7);
  };
  for (const char* end = x + whole_bytes; x < end; x += LINE, w += TILE_STEPS * STEP) add(w);
  if (last) add(last);
  _tile_stored(0, sums, STEP);
  _tile_stored(1, sums + LINE, STEP);
  _tile_stored(2, sums + TILE_ROWS * STEP, STEP);
  _tile_stored(3, sums + TILE_ROWS * STEP + LINE, STEP);
}
#undef ADD_PRODUCTS

// sums [num_rows][64] = start [64], the same for each row, + rows x, `stride` bytes apart, times the first `columns` of
// a block w; all in words of 32 bits. num_bytes: of a row, and all of w's steps that they meet. With tiles in use. Rows
// up to a multiple of 16 are read and written, and bytes of x up to a multiple of 64, which are 0 there. As soon as
// some rows are done finish(first, count) is called. Weights are read again for every 32 rows: pieces of them that stay
// in the first cache gained nothing.
template <bool IS_INT8, class F>
void sum_rows(const void* x, long stride, long num_rows, const void* start, const void* w, long num_bytes, long columns,
              void* sums, F finish) {
  const long rest = num_bytes % LINE, whole = num_bytes - rest;
  const auto *from = static_cast<const char*>(start), *weights = static_cast<const char*>(w);
  alignas(64) char filled_up[TILE_STEPS * STEP];
  const char* last = nullptr;
  if (rest) {
    const long there = (rest + 3) / 4 * STEP;
    memcpy(filled_up, weights + whole / LINE * TILE_STEPS * STEP, there);
    memset(filled_up + there, 0, TILE_STEPS * STEP - there);
    last = filled_up;
  }
  __asm__ volatile("" ::: "memory");  // GCC does not know that tiles read memory
  for (long r = 0; r < num_rows; r += 2 * TILE_ROWS) {
    const long left = num_rows - r;
    const char* rows = static_cast<const char*>(x) + r * stride;
    char* to = static_cast<char*>(sums) + r * STEP;
    if (left > TILE_ROWS) {
      for (long line = 0; line < columns * 4; line += 2 * LINE)
        sum_two_tiles<IS_INT8>(rows, stride, from + line, weights + line, last ? last + line : nullptr, whole,
                               to + line);
    } else if (columns > BLOCK / 2) {
      sum_tile<IS_INT8, true>(rows, stride, from, weights, last, whole, to);
    } else {
      sum_tile<IS_INT8, false>(rows, stride, from, weights, last, whole, to);
    }
    finish(r, left < 2 * TILE_ROWS ? left : 2 * TILE_ROWS);
  }
}
#else
ALWAYS_INLINE void take_tiles() {}
ALWAYS_INLINE void give_up_tiles() {}
#endif

}  // namespace LEVEL
