// Integer products of rows with weights in int8: the order of a sum does not change its result.
//
// A row of activations becomes integers of 15 bits (bfloat16) or 23 (float32), or of 8 with 8-bit activations, with one
// scale for all of them. Each integer is two or three digits in base 256, or one. Products and sums of digits and
// weights are exact; the scales, the bias and the activation follow in float32, element by element. So an element
// depends only on its own row. The error of a number is at most 2**-16 (2**-24, 2**-8) of its row's largest; rounding
// that number to bfloat16 (float32) has an error of up to 2**-9 (2**-25) of it.
//
// Digits are -128 .. 127, stored as bytes 0 .. 255, 128 higher: x86 and ARM multiply unsigned bytes by signed bytes.
// The digits of a place are a row [inputs, padded with anything to a multiple of 64], the most significant place first,
// `digit_stride` apart. Sums of up to 131,071 inputs fit int32 in any order.
//
// A weight [N, K] is stored in blocks of 64 outputs, the last one padded with zeros: 64 float32, the scale of each
// output; 64 int32, the correction for the 128 above, -128 times the sum of the output's weights; [K / 4][64][4] int8,
// four adjacent inputs, as all those instructions require, and K padded with zeros to a multiple of 64, the row of an
// AMX tile. So these are [steps][64] words of 32 bits, as in `products.h`, one stream in the order of reading.
#pragma once

#include "products/int8_sums.h"

namespace LEVEL {
namespace int8 {

template <class T>
constexpr int NUM_DIGITS = sizeof(T) == sizeof(float) ? 3 : 2;  // where a product keeps the precision of T

constexpr long filled_up(long num_inputs) { return (num_inputs + LINE - 1) / LINE * LINE; }
// Bytes from a row of digits to the next: an odd number of lines, so that they do not displace each other in a cache.
constexpr long digit_stride(long num_inputs) { return ((num_inputs + LINE - 1) / LINE | 1) * LINE; }
// Bytes for the digits of rows, as whole tiles of 16 read them.
template <class T>
constexpr long room_for_digits(long num_rows, long num_inputs) {
  return lanes_up(num_rows * NUM_DIGITS<T>) * digit_stride(num_inputs);
}
constexpr long block_bytes(long num_inputs) { return HEADER + BLOCK * filled_up(num_inputs); }

// Writes the digits of a row x [num_inputs], a row for each place. Returns the row's scale: a number is the scale times
// the sum of each digit times 256**(its place). NaN where a number is not finite: nothing is written then.
template <int COUNT, class T>
float digits_of_row(const T* x, long num_inputs, uint8_t* digits) {
  constexpr float LIMIT = float(127 << 8 * (COUNT - 1));  // no digit can exceed 127 then
  constexpr int32_t TOO_HIGH = 0x808080 >> 8 * (3 - COUNT);
  const float largest = largest_of(x, num_inputs);
  if (!(largest < __builtin_inff())) return __builtin_nanf("");
  const bool counts = largest >= 1e-30f;  // else the scale would not be a normal number, and all are zeros
  const float inverse = counts ? LIMIT / largest : 0.0f;
  const long stride = digit_stride(num_inputs);
  const auto write = [&](const T* from, uint8_t* to) {
    const IntVector whole = nearest(load(from) * inverse);
    for (int place = 0; place < COUNT; ++place)
      for (int i = 0; i < PARTS; ++i) {
        typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));
        const Words number = (Words)(whole.part[i] + TOO_HIGH) >> 8 * (COUNT - 1 - place);
        const Bytes bytes = __builtin_convertvector(number, Bytes);
        memcpy(to + place * stride + i * WIDTH, &bytes, sizeof bytes);
      }
  };
  const long whole = lanes_down(num_inputs);
  for (long k = 0; k < whole; k += LANES) write(x + k, digits + k);
  if (whole < num_inputs) {
    T rest[LANES] = {};
    memcpy(rest, x + whole, (num_inputs - whole) * sizeof(T));
    write(rest, digits + whole);
  }
  return counts ? largest / LIMIT : 0.0f;
}

// sums [rows][64] float32: for each row its digits' sums [rows][count][64], combined, times its scale and the outputs'
// scales.
template <int COUNT>
void scale_sums(const int32_t* sums, long rows, const float* row_scales, const float* scales, float* out) {
  for (long r = 0; r < rows; ++r, sums += COUNT * BLOCK, out += BLOCK)
    for (long j = 0; j < BLOCK; j += LANES) {
      const auto floats = [&](int place) {
        return each_part([&](int i) {
          return __builtin_convertvector(load_register(sums + place * BLOCK + j + i * WIDTH), Floats);
        });
      };
      Vector y = floats(0);
      for (int place = 1; place < COUNT; ++place) y = fma(y, 256.0f, floats(place));
      store(out + j, y * (load(scales + j) * row_scales[r]));
    }
}

// The columns of blocks first <= b < end of out [num_rows][num_outputs] = activation(x W^T + bias), where digits and
// row_scales [num_rows] represent x [num_rows][num_inputs] of T; the work of one thread. digits has
// `room_for_digits`; bias [num_outputs] or null.
template <int COUNT, class T>
void multiply_blocks(const uint8_t* digits, const float* row_scales, long num_rows, long num_inputs,
                     const int8_t* weights, const T* bias, long activation, long num_outputs, long first, long end,
                     T* out) {
  const long stride = digit_stride(num_inputs);
  alignas(64) int32_t sums[ROWS * COUNT * BLOCK];
  alignas(64) float scaled[ROWS * BLOCK];
  take_tiles();
  for (long b = first; b < end; ++b) {
    const int8_t* block = weights + b * block_bytes(num_inputs);
    const long column = b * BLOCK, count = num_outputs - column < BLOCK ? num_outputs - column : BLOCK;
    for (long top = 0; top < num_rows; top += ROWS) {
      const long rows = num_rows - top < ROWS ? num_rows - top : ROWS;
      sum_digits(digits + top * COUNT * stride, rows * COUNT, stride, block, filled_up(num_inputs), sums);
      scale_sums<COUNT>(sums, rows, row_scales + top, reinterpret_cast<const float*>(block), scaled);
      store_block(scaled, rows, count, bias ? bias + column : nullptr, activation, out + top * num_outputs + column,
                  num_outputs);
    }
  }
  give_up_tiles();
}

}  // namespace int8
}  // namespace LEVEL
