// The layout of every weight: blocks of 64 outputs. A step of a block is 64 words of 32 bits.
#pragma once

#include <stdint.h>

#include "level.h"

namespace LEVEL {

constexpr long BLOCK = 64;    // adjacent outputs
constexpr long CHAIN = 64;    // inputs with products in one chain of sums
constexpr long LINE = 64;     // bytes of a line of the caches
constexpr long AHEAD = 8192;  // distance in bytes at which weights are prefetched that are used once

using Word = uint32_t;

}  // namespace LEVEL
