#include "checkpoint/random_fill.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/model_files.h"

namespace protrain {
namespace {

struct Pair {
  double first, second;
};

// Two independent standard normals from counter `index` of the stream.
Pair normal_pair(std::array<std::uint32_t, 2> key, std::uint64_t name_hash, std::uint64_t index) {
  const auto words = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                             static_cast<std::uint32_t>(name_hash), static_cast<std::uint32_t>(name_hash >> 32)},
                            key);
  const auto unit = [](std::uint32_t high, std::uint32_t low) {  // 53 bits, in [0, 1)
    return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(1 - unit(words[0], words[1])));
  const double angle = 2 * std::numbers::pi * unit(words[2], words[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Elements of a work item of the pool; even.
constexpr std::int64_t kGrain = std::int64_t{1} << 14;

}  // namespace

void fill_normal(std::uint64_t seed, std::uint64_t name_hash, double std, std::int64_t first, std::int64_t n,
                 float* to) {
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  std::int64_t i = 0;
  if (n > 0 && first % 2 == 1) {
    to[i++] = static_cast<float>(std * normal_pair(key, name_hash, static_cast<std::uint64_t>(first / 2)).second);
  }
  for (; i < n; i += 2) {
    const Pair pair = normal_pair(key, name_hash, static_cast<std::uint64_t>((first + i) / 2));
    to[i] = static_cast<float>(std * pair.first);
    if (i + 1 < n) to[i + 1] = static_cast<float>(std * pair.second);
  }
}

void fill_random(ChunkStore& store, std::uint64_t seed) {
  ThreadPool pool(allowed_cores());
  std::vector<float> piece;
  const ModelSpec& spec = store.spec();
  for (std::size_t id = 0; id < spec.parameters.size(); ++id) {
    const ParameterSpec& parameter = spec.parameters[id];
    const std::int64_t elements = parameter.elements();
    const std::uint64_t name_hash = XXH64(parameter.name.data(), parameter.name.size(), 0);
    const std::int64_t row = parameter.shape.empty() ? 1 : elements / std::max<std::int64_t>(parameter.shape[0], 1);
    for (std::int64_t first = 0; first < elements; first += kPieceElements) {
      const std::int64_t count = std::min(kPieceElements, elements - first);
      piece.assign(static_cast<std::size_t>(count), parameter.fill == Fill::kOnes ? 1.0F : 0.0F);
      if (parameter.fill == Fill::kNormal) {
        pool.parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
          fill_normal(seed, name_hash, parameter.fill_std, first + begin, end - begin, piece.data() + begin);
        });
        if (parameter.zero_row >= 0) {
          const std::int64_t begin = std::clamp(parameter.zero_row * row - first, std::int64_t{0}, count);
          const std::int64_t end = std::clamp((parameter.zero_row + 1) * row - first, std::int64_t{0}, count);
          std::fill(piece.begin() + begin, piece.begin() + end, 0.0F);
        }
      }
      store.write_master(static_cast<Id>(id), first, count, piece.data(), &pool);
    }
  }
}

}  // namespace protrain
