// How a weight is stored, whatever its numbers: in blocks of 64 outputs, a step of which is 64 words of 32 bits.
#pragma once

#include <stdint.h>

#include "level.h"

namespace LEVEL {

constexpr long BLOCK = 64;    // outputs side by side
constexpr long CHAIN = 64;    // inputs whose products are summed in one chain
constexpr long LINE = 64;     // bytes that a cache fetches together
constexpr long AHEAD = 8192;  // bytes by which weights are asked for where they are used once

using Word = uint32_t;

}  // namespace LEVEL
