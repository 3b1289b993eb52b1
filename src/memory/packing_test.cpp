#include "memory/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace protrain {
namespace {

bool live_together(const Allocation& a, const Allocation& b) {
  return a.born < b.died && b.born < a.died && a.born < a.died && b.born < b.died;
}

// The bound by its definition, one clock tick at a time.
Bytes live_bound_by_definition(const std::vector<Allocation>& allocations) {
  Bytes most = 0;
  for (const Allocation& at : allocations) {
    Bytes sum = 0;
    for (const Allocation& other : allocations) {
      if (other.born <= at.born && at.born < other.died) sum += round_up(other.bytes, kAlignment);
    }
    most = std::max(most, sum);
  }
  return most;
}

void expect_valid(const std::vector<Allocation>& allocations, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), allocations.size());
  Bytes end = 0;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    EXPECT_EQ(packing.offsets[i] % kAlignment, 0);
    EXPECT_GE(packing.offsets[i], 0);
    if (allocations[i].born < allocations[i].died) {
      end = std::max(end, packing.offsets[i] + round_up(allocations[i].bytes, kAlignment));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!live_together(allocations[i], allocations[j])) continue;
      const bool apart = packing.offsets[i] + allocations[i].bytes <= packing.offsets[j] ||
                         packing.offsets[j] + allocations[j].bytes <= packing.offsets[i];
      ASSERT_TRUE(apart) << i << " and " << j << " overlap";
    }
  }
  EXPECT_EQ(packing.total, end);
  EXPECT_EQ(packing.live_bound, live_bound_by_definition(allocations));
  EXPECT_GE(packing.total, packing.live_bound);
}

std::vector<Allocation> random_allocations(std::mt19937& random, int count) {
  std::vector<Allocation> allocations;
  for (int i = 0; i < count; ++i) {
    const auto born = static_cast<std::int32_t>(random() % 200);
    const auto life = static_cast<std::int32_t>(random() % (random() % 3 == 0 ? 100 : 10));
    const Bytes bytes = random() % 8 == 0 ? 0 : static_cast<Bytes>(random() % (random() % 2 == 0 ? 2000 : 100000));
    allocations.push_back({bytes, born, born + life});
  }
  return allocations;
}

TEST(Packing, NeverOverlapsWhatLivesTogetherAndKnowsItsBound) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto allocations = random_allocations(random, static_cast<int>(1 + random() % 150));
    const Packing packing = pack(allocations);
    expect_valid(allocations, packing);
    // Far from a proof of optimality, but a packer that stacks everything fails it.
    EXPECT_LE(static_cast<double>(packing.total), 1.5 * static_cast<double>(packing.live_bound));
  }
}

TEST(Packing, IsAFunctionOfItsInput) {
  std::mt19937 random(7);
  const auto allocations = random_allocations(random, 300);
  EXPECT_EQ(pack(allocations).offsets, pack(allocations).offsets);
}

TEST(Packing, ReusesTheRangeOfWhatDiedAtThatVeryTime) {
  const std::vector<Allocation> allocations{{512, 0, 1}, {512, 1, 2}, {512, 2, 3}};
  EXPECT_EQ(pack(allocations).total, 512);
}

TEST(Packing, ReachesTheBoundOnNestedLifetimesAsOfAStack) {
  std::vector<Allocation> allocations;
  allocations.reserve(20);
  for (std::int32_t i = 0; i < 20; ++i) allocations.push_back({Bytes{1000} * (i + 1), i, 40 - i});
  const Packing packing = pack(allocations);
  expect_valid(allocations, packing);
  EXPECT_EQ(packing.total, packing.live_bound);
}

TEST(Packing, ReachesTheBoundOnABlockLikeSequence) {
  // Forward of a gated MLP on 4 MiB activations: everything transient but the saved set, freed as the next is made.
  std::vector<Allocation> allocations;
  for (std::int32_t layer = 0; layer < 8; ++layer) {
    const std::int32_t t = 6 * layer;
    allocations.push_back({4 * kMiB, t, t + 2});
    allocations.push_back({14 * kMiB, t + 1, t + 4});
    allocations.push_back({14 * kMiB, t + 2, t + 4});
    allocations.push_back({14 * kMiB, t + 3, t + 5});
    allocations.push_back({4 * kMiB, t + 4, t + 7});
  }
  const Packing packing = pack(allocations);
  expect_valid(allocations, packing);
  EXPECT_EQ(packing.total, packing.live_bound);
}

TEST(Packing, EmptyAndZeroByteRequestsTakeNoRoom) {
  EXPECT_EQ(pack({}).total, 0);
  const std::vector<Allocation> allocations{{0, 0, 9}, {700, 3, 3}, {1, 0, 1}};
  const Packing packing = pack(allocations);
  EXPECT_EQ(packing.total, 512);
  EXPECT_EQ(packing.live_bound, 512);
}

TEST(Packing, SizesBeyond32BitsAddUp) {
  const std::vector<Allocation> allocations{{5 * kGiB, 0, 2}, {6 * kGiB, 1, 3}, {5 * kGiB, 2, 4}};
  EXPECT_EQ(pack(allocations).total, 11 * kGiB);
}

TEST(Packing, RefusesALifeThatEndsBeforeItBegins) {
  const std::vector<Allocation> allocations{{512, 2, 1}};
  EXPECT_THROW(pack(allocations), InternalError);
}

}  // namespace
}  // namespace protrain
