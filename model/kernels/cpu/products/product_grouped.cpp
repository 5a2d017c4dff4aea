// Whole products of rows with weights in groups of inputs that share scales, and the packing of a weight (see
// grouped.h).
#include "products/grouped_sums.h"
#include "products/whole_products.h"

namespace LEVEL {
namespace {

// The codes, scales and so on of `count` outputs, from the first one on, as `pack_grouped` below.
struct Source {
  const uint8_t* codes;
  const uint16_t *scales, *mins;
  const uint8_t *scale_factors, *min_factors;
};

void pack_block(const Source& from, const grouped::Grouping& all, long count, long K, uint8_t* block) {
  const long superblocks = K / all.superblock, groups = K / all.group;
  const long groups_of_superblock = all.superblock / all.group;
  memset(block, 0, grouped::HEAD + superblocks * all.superblock_bytes());
  memcpy(block, &all, sizeof all);
  for (long n = 0; n < count; ++n)
    for (long s = 0; s < superblocks; ++s) {
      uint8_t* superblock = block + grouped::HEAD + s * all.superblock_bytes();
      memcpy(superblock + 2 * n, from.scales + n * superblocks + s, 2);
      if (all.has_min) memcpy(superblock + 2 * (BLOCK + n), from.mins + n * superblocks + s, 2);
      for (long i = 0; i < groups_of_superblock; ++i) {
        const long g = s * groups_of_superblock + i;
        uint8_t* at = superblock + all.superblock_head() + i * all.group_bytes();
        if (all.is_nested) {
          at[n] = from.scale_factors[n * groups + g];
          if (all.has_min) at[BLOCK + n] = from.min_factors[n * groups + g];
        }
        at += all.group_head();
        const uint8_t* codes = from.codes + n * K + g * all.group;
        for (long k = 0; k < all.group; k += grouped::OCTET, codes += grouped::OCTET) {
          if (all.bits == 4) {
            const Word word = grouped::Octet<4>::word_of(codes);
            memcpy(at + n * sizeof word, &word, sizeof word);
          } else {
            for (int i = 0; i < grouped::OCTET; ++i) at[i * BLOCK + n] = codes[i];
          }
          at += grouped::octet_bytes(all.bits);
        }
      }
    }
}

// Row n of a block, numbers of float32: row [K].
void read_row(const uint8_t* block, long n, long K, float* row) {
  const grouped::Grouping all = grouped::grouping_of(block);
  const long groups_of_superblock = all.superblock / all.group;
  const auto scale_at = [&](const uint8_t* at) {
    alignas(64) uint8_t lanes[2 * LANES] = {};
    memcpy(lanes, at, 2);
    float numbers[LANES];
    store(numbers, grouped::load_scales(all, lanes));
    return numbers[0];
  };
  for (long g = 0; g < K / all.group; ++g) {
    const uint8_t* superblock = block + grouped::HEAD + g / groups_of_superblock * all.superblock_bytes();
    const uint8_t* at = superblock + all.superblock_head() + g % groups_of_superblock * all.group_bytes();
    float scale = scale_at(superblock + 2 * n), min = all.has_min ? scale_at(superblock + 2 * (BLOCK + n)) : 0.0f;
    if (all.is_nested) {
      scale = scale * float(int8_t(at[n]));
      if (all.has_min) min = min * float(at[BLOCK + n]);
    }
    at += all.group_head();
    for (long k = 0; k < all.group; k += grouped::OCTET, at += grouped::octet_bytes(all.bits)) {
      Word word;
      memcpy(&word, at + n * sizeof word, sizeof word);
      for (int i = 0; i < grouped::OCTET; ++i, ++row) {
        const int8_t value = all.bits == 4 ? all.values[word >> 4 * grouped::Octet<4>::place(i) & 15]
                                           : int8_t(at[i * BLOCK + n]);
        *row = fma(scale, float(value), min);
      }
    }
  }
}

template <class T>
void gather(const void* w, const long* ids, long num_rows, long K, T* out) {
  constexpr long ROWS_FROM = 8;  // rows that are shared among threads
  parallel_shares(num_rows, ROWS_FROM, [&](long begin, long end) {
    float* numbers = scratch<Source, float>(K);
    for (long r = begin; r < end; ++r) {
      read_row(grouped::block_at(w, ids[r] / BLOCK), ids[r] % BLOCK, K, numbers);
      for (long k = 0; k < K; ++k) store_one(out + r * K + k, numbers[k]);
    }
  });
}

}  // namespace
}  // namespace LEVEL

// out [num_rows][N] = activation(x [num_rows][K] times the weight w + bias [N] or null), rounded once. arithmetic: 0
// multiplies float32 numbers, 1 bfloat16 where the rows are and the level can, 2 rows rounded to bytes.
EXPORT(void, product_grouped_f32)
(const float* x, const void* w, const float* bias, float* out, long num_rows, long K, long N, long activation,
 long arithmetic) {
  LEVEL::grouped::with_form<float>(arithmetic, [&]<class Form>(Form) {
    LEVEL::multiply_by<Form>(x, bias, out, num_rows, K, N, activation, LEVEL::grouped::sums_of_grouped<Form>(w, K));
  });
}
EXPORT(void, product_grouped_bf16)
(const uint16_t* x, const void* w, const uint16_t* bias, uint16_t* out, long num_rows, long K, long N, long activation,
 long arithmetic) {
  LEVEL::grouped::with_form<uint16_t>(arithmetic, [&]<class Form>(Form) {
    LEVEL::multiply_by<Form>(x, bias, out, num_rows, K, N, activation, LEVEL::grouped::sums_of_grouped<Form>(w, K));
  });
}

// The blocks from `block` on of a weight w, the first at byte `begin`, from codes [N][K], scales [N][K / superblock],
// mins of that shape or null, and factors [N][K / group] of both or null. grouping: a `Grouping`.
EXPORT(void, pack_grouped)
(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, const uint8_t* scale_factors,
 const uint8_t* min_factors, const void* grouping, uint8_t* w, long block, long begin, long K, long N) {
  using namespace LEVEL;
  grouped::Grouping all;
  memcpy(&all, grouping, sizeof all);
  const long bytes = grouped::HEAD + K / all.superblock * all.superblock_bytes();
  prefer_large_pages(w + begin, (N + BLOCK - 1) / BLOCK * bytes);
  parallel((N + BLOCK - 1) / BLOCK, [&](long b) {
    const long n = b * BLOCK, scale = n * (K / all.superblock), factor = n * (K / all.group);
    const Source from{codes + n * K, scales + scale, mins ? mins + scale : nullptr,
                      scale_factors ? scale_factors + factor : nullptr, min_factors ? min_factors + factor : nullptr};
    reinterpret_cast<int64_t*>(w)[block + b] = begin + b * bytes;
    pack_block(from, all, N - n < BLOCK ? N - n : BLOCK, K, w + begin + b * bytes);
  });
}

// out [num_rows][K] = rows ids of the weight w
EXPORT(void, gather_grouped_f32)(const void* w, const long* ids, long num_rows, long K, float* out) {
  LEVEL::gather(w, ids, num_rows, K, out);
}
EXPORT(void, gather_grouped_bf16)(const void* w, const long* ids, long num_rows, long K, uint16_t* out) {
  LEVEL::gather(w, ids, num_rows, K, out);
}
