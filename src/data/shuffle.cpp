#include "data/shuffle.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace protrain {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a counter through a mixing function; every seed is a good seed.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t state) : state_(state) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound), without bias: the high word of a 128-bit product, rejecting the short first interval
  // (Lemire 2019).
  std::uint64_t below(std::uint64_t bound) {
    for (;;) {
      const auto product = static_cast<unsigned __int128>(next()) * bound;
      const auto low = static_cast<std::uint64_t>(product);
      if (low >= bound || low >= -bound % bound) return static_cast<std::uint64_t>(product >> 64);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed, std::uint64_t stream) {
  PROTRAIN_CHECK(n >= 0);
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  // Two mixes, so that (seed, stream) and (seed + 1, stream - 1) are unrelated.
  SplitMix random(SplitMix(SplitMix(seed).next() ^ stream).next());
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

}  // namespace protrain
