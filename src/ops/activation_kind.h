// The activations that the operators and their kernels know.
#pragma once
#include <cstdint>

namespace protrain::ops {

enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

}  // namespace protrain::ops
