// One micro-batch as bytes: how its arrays lie in a region, on the host and on the device alike. Header only.
//
// A micro-batch is `rows` rows of `row_tokens` tokens, T = rows x row_tokens. Unpacked: a row is one sample, its tail
// is padding. Packed: a row holds several samples one after the other; samples never cross a row's edge. In both cases
// `sample_starts` cuts the T tokens into samples (padding is cut into samples of its own), so that attention stays
// inside a sample and positions start at 0 in each.
#pragma once
#include <cstdint>
#include <span>

#include "base/units.h"

namespace protrain {

inline constexpr std::int32_t kIgnoredLabel = -100;

struct BatchShape {
  std::int64_t rows = 0;
  std::int64_t row_tokens = 0;
  std::int64_t max_samples = 0;  // sample_starts has max_samples + 1 entries, the unused ones at the end equal T
  bool packed = false;           // false: exactly `rows` samples, each a whole row: the dense attention path
  constexpr std::int64_t tokens() const { return rows * row_tokens; }
  bool operator==(const BatchShape&) const = default;
};

// Byte offsets of the arrays inside the micro-batch's range; each starts at a multiple of kAlignment.
struct BatchLayout {
  Bytes tokens = 0;         // int32 [T], in [0, vocabulary)
  Bytes labels = 0;         // int32 [T]: the token to predict at this position (already shifted), or kIgnoredLabel
  Bytes positions = 0;      // int32 [T]: position inside the sample
  Bytes sample_starts = 0;  // int32 [max_samples + 1]
  Bytes bytes = 0;          // whole range
};

constexpr BatchLayout batch_layout(const BatchShape& shape) {
  const Bytes array = round_up(shape.tokens() * Bytes{4}, kAlignment);
  BatchLayout layout;
  layout.labels = array;
  layout.positions = 2 * array;
  layout.sample_starts = 3 * array;
  layout.bytes = 3 * array + round_up((shape.max_samples + 1) * Bytes{4}, kAlignment);
  return layout;
}

}  // namespace protrain
