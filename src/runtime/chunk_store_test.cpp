#include "runtime/chunk_store.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

TEST(ChunkStore, ReadsBackEveryMasterExactlyWhateverTheChunks) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Bytes chunk_bytes : {Bytes{1}, kMiB}) {
      const Rig rig({compute, false, 2, 1, chunk_bytes, Modes::kKeep, {}});
      const auto masters = random_masters(rig.spec);
      for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
        std::vector<float> found(masters[id].size());
        rig.store->read_master(id, 0, static_cast<std::int64_t>(found.size()), found.data());
        EXPECT_EQ(found, masters[id]);
      }
    }
  }
}

TEST(ChunkStore, WritesExactlyTheElementsAskedFor) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Rig rig({compute, true, 1, 1, 1, Modes::kKeep, {}});
    const auto masters = random_masters(rig.spec);
    for (Id target = 0; target < static_cast<Id>(masters.size()); ++target) {
      const std::vector<float> fresh = {3.25f, -1e-20f, 1.0f / 3};
      rig.store->write_master(target, 2, 3, fresh.data());
      for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
        std::vector<float> found(masters[id].size()), expected = masters[id];
        rig.store->read_master(id, 0, static_cast<std::int64_t>(found.size()), found.data());
        if (id == target) std::copy(fresh.begin(), fresh.end(), expected.begin() + 2);
        EXPECT_EQ(found, expected) << "parameter " << id << " after a write to " << target;
      }
      rig.store->write_master(target, 0, static_cast<std::int64_t>(masters[target].size()), masters[target].data());
      std::vector<float> piece(2);
      rig.store->read_master(target, 3, 2, piece.data());
      EXPECT_EQ(piece, std::vector<float>(masters[target].begin() + 3, masters[target].begin() + 5));
    }
  }
}

TEST(ChunkStore, KeepsMomentsWhenAMasterIsWrittenAndZeroesThemOnRequest) {
  Rig rig({DType::kBf16, false, 1, 1, kMiB, Modes::kKeep, {}});
  const std::vector<float> m = {1, 2, 3}, zeros(3);
  rig.store->write(1, Part::kM, 1, 3, reinterpret_cast<const std::byte*>(m.data()));
  rig.store->write_master(1, 0, 3, m.data());
  std::vector<float> found(3);
  const auto read = [&] { rig.store->read(1, Part::kM, 1, 3, reinterpret_cast<std::byte*>(found.data())); };
  read();
  EXPECT_EQ(found, m);
  rig.store->zero_moments();
  read();
  EXPECT_EQ(found, zeros);
}

TEST(ChunkStore, RefusesElementsBeyondTheParameter) {
  Rig rig({});
  std::vector<float> buffer(8);
  EXPECT_THROW(rig.store->read_master(1, 0, kHidden + 1, buffer.data()), InternalError);
  EXPECT_THROW(rig.store->write_master(1, -1, 2, buffer.data()), InternalError);
  EXPECT_THROW(rig.store->parameter(1, Part::kResidual), InternalError);  // fp32 compute has none
}

TEST(ChunkStore, BindsAlignedAddressesThatNeverOverlapAndLetTheHeadWriteATiedMatrixFirst) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    const Rig rig({compute, true, 2, 1, kMiB, Modes::kKeep, {}});
    std::set<const std::byte*> weights;
    const auto last = static_cast<Id>(rig.spec.blocks.size()) - 1;
    for (Id block = 0; block <= last; ++block) {
      const auto first = rig.store->bind(block, true);
      const auto again = rig.store->bind(block, false);
      ASSERT_EQ(first.size(), rig.spec.blocks[block].parameters.size());
      for (std::size_t i = 0; i < first.size(); ++i) {
        const Id id = rig.spec.blocks[block].parameters[i];
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first[i].weight) % kAlignment, 0u);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first[i].gradient) % kAlignment, 0u);
        EXPECT_EQ(first[i].weight, again[i].weight);
        EXPECT_EQ(first[i].first, !(block == 0 && id == 0));
        EXPECT_FALSE(again[i].first);
        const bool edge = block == 0 || block == last;
        EXPECT_EQ(first[i].gradient_dtype, edge ? DType::kF32 : compute);
        weights.insert(first[i].weight);
      }
    }
    EXPECT_EQ(weights.size(), rig.spec.parameters.size());  // the tied matrix is one
  }
}

}  // namespace
}  // namespace protrain::toy
