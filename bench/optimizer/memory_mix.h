// Streams of AdamW's read:write mix without its arithmetic: 14 bytes read and 12 written an element.
#pragma once
#include <cstdint>

#include "optimizer/adamw.h"

namespace protrain::bench {

// In place: every state array becomes itself plus a multiple of the gradient.
void triad_mix(const StateBytes& state);
// Out of place: copies the four state arrays to `to` and reads the gradient, whose sum it returns. Plain or streaming
// stores.
std::uint64_t copy_mix(const StateBytes& from, const StateBytes& to);
std::uint64_t streaming_copy_mix(const StateBytes& from, const StateBytes& to);  // arrays aligned to 64 bytes

}  // namespace protrain::bench
