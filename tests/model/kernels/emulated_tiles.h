// The tiles of AMX in software, for a machine that has none. The compiler gets this file by -include, so that the
// kernels' own sources need no change. It follows Intel's manual (Software Developer's Manual, volume 2: LDTILECFG,
// TILELOADD, TILESTORED, TDPBF16PS, TDPBUSD); an operation that these instructions would refuse ends the program.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace emulated {

struct Config {
  uint8_t palette, start_row, none[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
union Row {
  int32_t ints[16];
  __m256i halves[2];
};
struct State {
  Config config;
  Row tiles[8][16];
};
inline thread_local constinit State state = {};

inline void refuse_unless(bool right) {
  if (!right) __builtin_trap();
}
inline void refuse_unless_there(int tile) {
  refuse_unless(state.config.palette == 1 && tile >= 0 && tile < 8 && state.config.rows[tile] > 0);
}

inline void load_config(const void* from) {
  Config config;
  memcpy(&config, from, sizeof config);
  refuse_unless(config.palette <= 1 && config.start_row == 0);
  for (int i = 0; i < 16; ++i) {
    refuse_unless(config.rows[i] <= 16 && config.row_bytes[i] <= 64 && !config.rows[i] == !config.row_bytes[i]);
    refuse_unless(i < 8 || config.rows[i] == 0);
  }
  state = {};
  state.config = config;
}

inline void release() { state = {}; }

inline void zero(int tile) {
  refuse_unless_there(tile);
  memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
}

inline void load(int tile, const void* from, long stride) {
  zero(tile);
  for (int r = 0; r < state.config.rows[tile]; ++r)
    memcpy(&state.tiles[tile][r], static_cast<const char*>(from) + r * stride, state.config.row_bytes[tile]);
}

inline void store(int tile, void* to, long stride) {
  refuse_unless_there(tile);
  for (int r = 0; r < state.config.rows[tile]; ++r)
    memcpy(static_cast<char*>(to) + r * stride, &state.tiles[tile][r], state.config.row_bytes[tile]);
}

inline void refuse_unless_they_fit(int sums, int rows, int weights) {
  refuse_unless_there(sums), refuse_unless_there(rows), refuse_unless_there(weights);
  const Config& config = state.config;
  refuse_unless(sums != rows && sums != weights && rows != weights);
  refuse_unless(config.rows[sums] == config.rows[rows] && config.row_bytes[sums] == config.row_bytes[weights]);
  refuse_unless(config.row_bytes[rows] == 4 * config.rows[weights] && config.row_bytes[sums] % 4 == 0);
}

// The even ones of pairs of bfloat16, and the odd ones, as float32.
inline __m256 even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int32_t(0xFFFF0000))));
}

// In a function of its own: otherwise the compiler might move additions across the change of the denormals' mode.
[[gnu::noinline]] inline void add_pairs(int sums, int rows, int weights) {
  for (int m = 0; m < state.config.rows[sums]; ++m) {
    __m256 even[2] = {}, odd[2] = {}, totals[2];
    for (int k = 0; k < state.config.row_bytes[rows] / 4; ++k)
      for (int half = 0; half < 2; ++half) {
        const __m256i x = _mm256_set1_epi32(state.tiles[rows][m].ints[k]), w = state.tiles[weights][k].halves[half];
        even[half] = _mm256_fmadd_ps(even_of(x), even_of(w), even[half]);
        odd[half] = _mm256_fmadd_ps(odd_of(x), odd_of(w), odd[half]);
      }
    Row& row = state.tiles[sums][m];
    for (int half = 0; half < 2; ++half)
      totals[half] = _mm256_add_ps(_mm256_castsi256_ps(row.halves[half]), _mm256_add_ps(even[half], odd[half]));
    memcpy(&row, totals, state.config.row_bytes[sums]);
  }
}

inline void multiply_bfloat16(int sums, int rows, int weights) {
  refuse_unless_they_fit(sums, rows, weights);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x1F80 | 0x8040);  // no exceptions, round to nearest; denormals are read and written as 0
  add_pairs(sums, rows, weights);
  _mm_setcsr(before);
}

inline void multiply_bytes(int sums, int rows, int weights) {
  refuse_unless_they_fit(sums, rows, weights);
  const __m256i low = _mm256_set1_epi32(0x00FF00FF);
  for (int m = 0; m < state.config.rows[sums]; ++m) {
    Row total = state.tiles[sums][m];
    for (int k = 0; k < state.config.row_bytes[rows] / 4; ++k)
      for (int half = 0; half < 2; ++half) {
        const __m256i x = _mm256_set1_epi32(state.tiles[rows][m].ints[k]), w = state.tiles[weights][k].halves[half];
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, low), _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(w, 8));
        total.halves[half] = _mm256_add_epi32(total.halves[half], _mm256_add_epi32(even, odd));
      }
    memcpy(&state.tiles[sums][m], &total, state.config.row_bytes[sums]);
  }
}

}  // namespace emulated

// Whether this thread has left its tiles in use.
extern "C" __attribute__((weak, visibility("default"))) int emulated_tiles_in_use(void) {
  return emulated::state.config.palette;
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig emulated::load_config
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply_bfloat16
#define _tile_dpbusd emulated::multiply_bytes
