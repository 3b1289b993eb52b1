#include "runtime/chunk_store.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

// One row a kind of chunk: resident, kCpu with a device home, streamed.
std::vector<RigOptions> kinds_of_places() {
  std::vector<RigOptions> all;
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Bytes chunk_bytes : {Bytes{1}, kMiB}) {
      RigOptions options{.compute = compute, .layers = 2, .chunk_bytes = chunk_bytes};
      all.push_back(options);
      options.places = Places::kCpu;
      all.push_back(options);
      options.persist = Persist::kNone;
      options.state_tier = Tier::kPinned;
      all.push_back(options);
    }
  }
  return all;
}

TEST(ChunkStore, ReadsBackEveryMasterExactlyWhateverTheChunksAndTheirPlaces) {
  for (const RigOptions& options : kinds_of_places()) {
    SCOPED_TRACE(describe(options));
    const Rig rig(options);
    const auto masters = random_masters(rig.spec);
    for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
      std::vector<float> found(masters[id].size());
      rig.store->read_master(id, 0, static_cast<std::int64_t>(found.size()), found.data());
      EXPECT_EQ(found, masters[id]);
    }
  }
}

TEST(ChunkStore, WritesExactlyTheElementsAskedFor) {
  ThreadPool pool(3);
  for (RigOptions options : kinds_of_places()) {
    options.tied = true;
    SCOPED_TRACE(describe(options));
    Rig rig(options);
    const auto masters = random_masters(rig.spec);
    for (Id target = 0; target < static_cast<Id>(masters.size()); ++target) {
      const std::vector<float> fresh = {3.25f, -1e-20f, 1.0f / 3};
      rig.store->write_master(target, 2, 3, fresh.data(), target % 2 == 0 ? &pool : nullptr);
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
  for (const RigOptions& options : kinds_of_places()) {
    SCOPED_TRACE(describe(options));
    Rig rig(options);
    const std::vector<float> m = {1, 2, 3}, zeros(3);
    rig.store->write(1, Part::kM, 1, 3, reinterpret_cast<const std::byte*>(m.data()));
    rig.store->write_master(1, 0, 3, m.data());
    std::vector<float> found(3);
    const auto read = [&] { rig.store->read(1, Part::kM, 1, 3, reinterpret_cast<std::byte*>(found.data())); };
    read();
    EXPECT_EQ(found, m);
    ThreadPool pool(2);
    rig.store->zero_moments(&pool);
    read();
    EXPECT_EQ(found, zeros);
  }
}

TEST(ChunkStore, RefusesElementsBeyondTheParameter) {
  Rig rig({});
  std::vector<float> buffer(8);
  EXPECT_THROW(rig.store->read_master(1, 0, kHidden + 1, buffer.data()), InternalError);
  EXPECT_THROW(rig.store->write_master(1, -1, 2, buffer.data()), InternalError);
  auto* const bytes = reinterpret_cast<std::byte*>(buffer.data());
  EXPECT_THROW(rig.store->read(1, Part::kResidual, 0, 1, bytes), InternalError);  // fp32 compute has none
}

// The next copy of the store's own stream after the rig is made fails: one a parameter has made it.
RigOptions with_failing_store(Places places) {
  RigOptions options{.layers = 2, .places = places};
  options.faults.lanes = {"store"};
  options.faults.fail_copy = static_cast<std::int64_t>(make_spec(2, false).parameters.size()) + 1;
  return options;
}

TEST(ChunkStore, ReadsAndWritesAgainAfterACopyThatFailed) {
  for (const bool writes : {false, true}) {
    Rig rig(with_failing_store(Places::kResident));
    const auto masters = random_masters(rig.spec);
    std::vector<float> found(masters[1].size()), fresh(masters[1].size(), 3.25f);
    const auto count = static_cast<std::int64_t>(fresh.size());
    const auto access = [&] {
      writes ? rig.store->write_master(1, 0, count, fresh.data()) : rig.store->read_master(1, 0, count, found.data());
    };
    EXPECT_THROW(access(), Error);
    access();
    rig.store->zero_moments();
    rig.store->read_master(1, 0, count, found.data());
    EXPECT_EQ(found, writes ? fresh : masters[1]);
  }
}

TEST(ChunkStore, LoadsStaleHomesAgainAfterACopyThatFailed) {
  const RigOptions failing = with_failing_store(Places::kCpu);
  RigOptions whole = failing;
  whole.faults = {};
  Rig rig(failing), expected(whole);
  const Batch batch(kTrainShape, 1, kSeed);
  EXPECT_THROW(rig.train(0, batch), Error);  // which loads them first
  EXPECT_FALSE(rig.store->current(0));
  rig.train(0, batch);
  expected.train(0, batch);
  EXPECT_EQ(all_state(rig), all_state(expected));
}

TEST(ChunkStore, KeepsTheTruthInTheTierOfTheChunksPlace) {
  for (const Tier tier : {Tier::kPinned, Tier::kPageable}) {
    const Rig rig({.compute = DType::kBf16,
                   .chunk_bytes = 1,
                   .persist = Persist::kNone,
                   .places = Places::kMixed,
                   .state_tier = tier});
    int on_device = 0, on_host = 0;
    for (Id chunk = 0; chunk < static_cast<Id>(rig.chunks.size()); ++chunk) {
      const bool host = rig.plan.place[chunk] == UpdatePlace::kCpu;
      ++(host ? on_host : on_device);
      EXPECT_EQ(rig.store->home(chunk, Part::kWeight).tier, host ? Tier::kPinned : Tier::kDevice);
      EXPECT_EQ(rig.store->home(chunk, Part::kGradient).tier, host ? Tier::kPinned : Tier::kDevice);
      for (const Part part : {Part::kResidual, Part::kM, Part::kV}) {
        EXPECT_EQ(rig.store->home(chunk, part).tier, host ? tier : Tier::kDevice);
      }
    }
    EXPECT_GT(on_device, 0);
    EXPECT_GT(on_host, 0);
  }
}

TEST(ChunkStore, WritesAWeightWithADeviceHomeInBothPlacesAndMakesASlotStale) {
  Rig rig({.compute = DType::kBf16, .chunk_bytes = 1, .persist = Persist::kHalf, .places = Places::kCpu});
  rig.train(0, Batch(kTrainShape, 1, kSeed));
  rig.runner->drain();
  rig.store->load_stale_homes();
  const auto where = places(rig.spec, rig.chunks);
  const std::vector<Id> slot = slots(rig.chunks, rig.plan).weight;
  for (Id block = 0; block < static_cast<Id>(rig.spec.blocks.size()); ++block) {
    const auto bound = rig.store->bind(block, true);
    for (std::size_t i = 0; i < bound.size(); ++i) {
      const Id id = rig.spec.blocks[block].parameters[i];
      const Id chunk = where[id].chunk;
      const std::int64_t version = rig.store->version(chunk);
      const std::vector<float> fresh = {3.25f, -1.5f};
      rig.store->write_master(id, 3, 2, fresh.data());
      EXPECT_GT(rig.store->version(chunk), version);
      EXPECT_EQ(rig.store->current(chunk), slot[chunk] < 0);
      if (slot[chunk] >= 0) continue;
      EXPECT_EQ(load(bound[i].weight, DType::kBf16, 3), 3.25f);
      EXPECT_EQ(load(bound[i].weight, DType::kBf16, 4), -1.5f);
    }
  }
}

TEST(ChunkStore, KnowsWhichCopyIsOfThePresentWeight) {
  Rig rig({.chunk_bytes = 1, .persist = Persist::kNone, .places = Places::kCpu});
  ChunkStore& store = *rig.store;
  EXPECT_FALSE(store.current(1));
  store.loaded(1);
  EXPECT_TRUE(store.current(1));
  EXPECT_FALSE(store.current(2));
  store.raise_version(1);
  EXPECT_FALSE(store.current(1));
  store.loaded(1);
  EXPECT_TRUE(store.current(1));
  store.forget_copies();
  EXPECT_FALSE(store.current(1));
}

TEST(ChunkStore, BindsAlignedAddressesThatNeverOverlapAndLetTheHeadWriteATiedMatrixFirst) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Places places : {Places::kResident, Places::kCpu}) {
      const Rig rig({.compute = compute, .tied = true, .layers = 2, .places = places});
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
}

}  // namespace
}  // namespace protrain::toy
