// Walks a graph in its total order and keeps books of what every byte holds: for tests. What it checks follows from the
// headers alone: it knows regions and their sizes, and nothing of how the graph was made.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "schedule/test_case.h"

namespace protrain::test {

inline bool overlap(const Range& a, const Range& b) {
  return a.tier == b.tier && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}
inline bool inside(const Range& part, const Range& whole) {
  return part.tier == whole.tier && whole.offset <= part.offset &&
         part.offset + part.bytes <= whole.offset + whole.bytes;
}

class Simulation {
 public:
  Simulation(const Case& one, const StepShape& step)
      : one_(one), step_(step), slots_(slots(one.chunks, one.plan)), uses_(chunk_uses(one.spec, one.chunks)) {
    const auto count = one.chunks.size();
    host_version_.assign(count, 0);
    expected_.assign(count, 0);
    for (const Id chunk : step.pending) expected_[chunk] = 1;
    for (Id chunk = 0; chunk < static_cast<Id>(count); ++chunk) {
      if (slots_.weight[chunk] < 0) device_[key(weight_region(one.plan, slots_, chunk))] = {chunk, 0};
    }
    for (Id slot = 0; slot < static_cast<Id>(step.slots.size()); ++slot) {
      if (step.slots[slot] >= 0) device_[key({Region::kWeightSlot, slot})] = {step.slots[slot], 0};
    }
    for (const auto& entry : one.bytes.entries) {
      if (!entry.whole_run) continue;
      whole_.push_back(entry.range);
      if (entry.range.tier != Tier::kDevice) continue;
      high_ = std::max(high_, entry.range.offset + entry.range.bytes);
      sum_ += round_up(entry.range.bytes, kAlignment);
    }
    most_ = sum_;
  }

  void run(const Schedule& schedule) {
    for (const Task& task : schedule.tasks) {
      SCOPED_TRACE(task.name);
      acquire(task);
      for (const Access& access : task.access) check_home(access.range);
      switch (task.op) {
        case Op::kRunBlock: run_block(task); break;
        case Op::kCopy: copy(task); break;
        case Op::kRound: round(task); break;
        case Op::kNorm: norm(task); break;
        case Op::kFinishNorm: break;
        case Op::kUpdate: update(task); break;
      }
      release(task);
      if (::testing::Test::HasFailure()) return;
    }
    end(schedule);
  }

  Bytes high_water() const { return high_; }  // device
  Bytes most_live() const { return most_; }   // device, aligned
  int loads() const { return loads_; }

 private:
  using Key = std::pair<Region, Id>;
  static Key key(const RegionKey& of) { return {of.region, of.index}; }
  struct Weight {
    Id chunk = -1;
    int version = 0;
    bool operator==(const Weight&) const = default;
  };
  using Turns = std::multiset<std::pair<Id, Id>>;  // (block, micro-batch) whose gradients a sum holds

  void acquire(const Task& task) {
    for (const Range& range : task.acquires) {
      for (const Range& other : live_) ASSERT_FALSE(overlap(range, other)) << range.offset;
      for (const Range& other : whole_) ASSERT_FALSE(overlap(range, other)) << range.offset;
      live_.push_back(range);
      forget(range);
      if (range.tier != Tier::kDevice) continue;
      high_ = std::max(high_, range.offset + range.bytes);
      sum_ += round_up(range.bytes, kAlignment);
    }
    most_ = std::max(most_, sum_);
  }

  void release(const Task& task) {
    for (const Range& range : task.releases) {
      const auto found = std::find(live_.begin(), live_.end(), range);
      ASSERT_NE(found, live_.end());
      live_.erase(found);
      forget(range);
      if (range.tier == Tier::kDevice) sum_ -= round_up(range.bytes, kAlignment);
    }
  }

  void check_home(const Range& range) {
    const auto has = [&](const std::vector<Range>& all) {
      return std::any_of(all.begin(), all.end(), [&](const Range& one) { return inside(range, one); });
    };
    ASSERT_TRUE(has(live_) || has(whole_))
        << "bytes at " << range.offset << " of tier " << static_cast<int>(range.tier);
  }

  // What is at `range` is gone.
  void forget(const Range& range) {
    std::erase_if(holds_, [&](const auto& held) { return overlap(held.first, range); });
  }
  struct Less {
    bool operator()(const Range& a, const Range& b) const {
      return std::tuple(a.tier, a.offset, a.bytes) < std::tuple(b.tier, b.offset, b.bytes);
    }
  };
  void put(const Range& range, std::string what) {
    if (range.bytes == 0) return;
    forget(range);
    holds_[range] = std::move(what);
  }
  void expect(const Range& range, const std::string& what) {
    if (range.bytes == 0) return;
    const auto found = holds_.find(range);
    ASSERT_NE(found, holds_.end()) << "no " << what;
    EXPECT_EQ(found->second, what);
  }

  void run_block(const Task& task) {
    const Id block = task.what.block;
    const Id m = task.what.micro_batch;
    const auto blocks = static_cast<Id>(one_.spec.blocks.size());
    const bool training = step_.graph == Graph::kTrain;
    const auto name = [&](std::string_view what, Id of) { return fmt::format("{} {} {}", what, of, m); };
    const auto named = [&](const Range& range, bool writes) {
      const auto same = [&](const Access& access) { return access.range == range && access.writes == writes; };
      EXPECT_TRUE(range.bytes == 0 || std::any_of(task.access.begin(), task.access.end(), same));
    };
    const BlockRanges& call = task.block;
    named(call.input, false);
    named(call.output, true);
    named(call.output_gradient, false);
    named(call.input_gradient, true);
    named(call.batch, false);
    named(call.host_batch, false);
    named(call.workspace, true);
    named(call.saved, task.what.pass == Pass::kForwardKeep);
    EXPECT_EQ(call.input.bytes > 0, block > 0);
    expect(call.batch, fmt::format("batch {}", m));
    expect(call.input, name("activation", block));

    const bool light = one_.spec.blocks[block].kind == BlockKind::kLayer && traits(one_.plan.activation[block]).light;
    EXPECT_EQ(task.what.light, light && task.what.pass != Pass::kForward);
    const CallMemory& memory =
        one_.profile.find({one_.spec.blocks[block].trace, task.what.pass, task.what.light, step_.batch, training});
    EXPECT_EQ(call.workspace.bytes, memory.workspace);
    if (task.what.pass == Pass::kForwardKeep) {
      EXPECT_EQ(call.saved.bytes, memory.saved);
    }

    for (const ChunkUse& use : uses_[block]) {
      const Weight weight = device_[key(weight_region(one_.plan, slots_, use.chunk))];
      EXPECT_EQ(weight.chunk, use.chunk);
      EXPECT_EQ(weight.version, expected_[use.chunk]) << "a stale weight of chunk " << use.chunk;
      if (task.what.pass != Pass::kBackward) continue;
      Turns& sum = sums_[use.chunk];
      const Id first = one_.plan.order == Order::kLayer ? static_cast<Id>(step_.micro_batches) - 1 : 0;
      EXPECT_EQ(task.first, m == first);
      sum.insert({block, m});
    }
    if (task.what.pass == Pass::kForwardKeep) put(call.saved, name("saved", block));
    if (task.what.pass == Pass::kBackward) {
      expect(call.saved, name("saved", block));
      expect(call.output_gradient, name("gradient", block + 1));
      put(call.input_gradient, name("gradient", block));
    }
    if (block + 1 < blocks) {
      put(call.output, name("activation", block + 1));
    } else {
      EXPECT_EQ(call.output.bytes, 8);
      put(call.output, name("loss", 0));
    }
    ++calls_[{block, m, task.what.pass}];
  }

  void copy(const Task& task) {
    const Range& from = task.access.at(0).range;
    const Range& to = task.access.at(1).range;
    EXPECT_EQ(from.bytes, to.bytes);
    EXPECT_FALSE(task.access[0].writes);
    EXPECT_TRUE(task.access[1].writes);
    EXPECT_EQ(task.lane, to.tier == Tier::kDevice ? Lane::kH2d : Lane::kD2h);
    if (task.chunk < 0) {
      const Range staging = one_.bytes.find(Region::kBatchStaging, step_.batch_slot);
      if (inside(from, staging)) {
        const Bytes bytes = batch_layout(step_.batch).bytes;
        EXPECT_EQ(from.bytes, step_.micro_batches * bytes);
        for (Id m = 0; m < step_.micro_batches; ++m)
          put({to.tier, to.offset + m * bytes, bytes}, fmt::format("batch {}", m));
      } else if (const auto found = holds_.find(from); found != holds_.end()) {
        put(to, std::string(found->second));
      }
      return;
    }
    if (task.lane == Lane::kH2d) {
      ++loads_;
      const RegionKey place = weight_region(one_.plan, slots_, task.chunk);
      EXPECT_EQ(to.offset, one_.bytes.find(place).offset);
      const Weight weight{task.chunk, host_version_[task.chunk]};
      EXPECT_FALSE(device_[key(place)] == weight) << "it is there already";
      EXPECT_TRUE(!step_.clip || weight.version == expected_[task.chunk]) << "loaded before its update";
      device_[key(place)] = weight;
      return;
    }
    EXPECT_EQ(to.offset,
              one_.bytes.find(Region::kState, task.chunk * kParts + static_cast<Id>(Part::kGradient)).offset);
    complete(task.chunk);
    EXPECT_TRUE(left_.insert(task.chunk).second) << "left twice";
  }

  // All turns of all blocks of this chunk, once each.
  void complete(Id chunk) {
    const GradientRegions regions = gradient_regions(one_.spec, one_.chunks, one_.shape, one_.plan, slots_, chunk);
    const Turns& sum = regions.sum == regions.wire ? sums_[chunk] : rounded_[chunk];
    Turns all;
    for (Id block = 0; block < static_cast<Id>(uses_.size()); ++block) {
      for (const ChunkUse& use : uses_[block]) {
        for (Id m = 0; use.chunk == chunk && m < step_.micro_batches; ++m) all.insert({block, m});
      }
    }
    EXPECT_EQ(sum, all) << "chunk " << chunk;
  }

  void round(const Task& task) {
    const GradientRegions regions = gradient_regions(one_.spec, one_.chunks, one_.shape, one_.plan, slots_, task.chunk);
    EXPECT_EQ(task.access.at(0).range.offset, one_.bytes.find(regions.sum).offset);
    EXPECT_EQ(task.access.at(1).range.offset, one_.bytes.find(regions.wire).offset);
    EXPECT_EQ(task.access[0].range.bytes, one_.chunks[task.chunk].elements * 4);
    rounded_[task.chunk] = sums_[task.chunk];
  }

  void norm(const Task& task) {
    const GradientRegions regions = gradient_regions(one_.spec, one_.chunks, one_.shape, one_.plan, slots_, task.chunk);
    EXPECT_EQ(task.access.at(0).range.offset, one_.bytes.find(regions.wire).offset);
    complete(task.chunk);
    EXPECT_TRUE(normed_.insert(task.chunk).second);
  }

  void update(const Task& task) {
    const bool host = one_.plan.place[task.chunk] == UpdatePlace::kCpu;
    EXPECT_EQ(task.lane, host ? Lane::kCpuUpdate : Lane::kGpuUpdate);
    const Range control = task.access.at(0).range;
    EXPECT_EQ(control, !host          ? one_.bytes.find(Region::kControl, 0)
                       : task.pending ? one_.bytes.find(Region::kResults, step_.pending_slot)
                                      : one_.bytes.find(Region::kResults, 2));
    EXPECT_EQ(task.access.size(), one_.shape.compute == DType::kF32 ? 5u : 6u);
    for (const Access& access : task.access) EXPECT_EQ(access.range.tier == Tier::kDevice, !host);
    if (task.pending) {
      EXPECT_TRUE(updates_pending_.empty() || updates_pending_.back() < task.chunk) << "not in execution order";
      updates_pending_.push_back(task.chunk);
    } else {
      EXPECT_TRUE(updated_.insert(task.chunk).second);
      if (host) {
        EXPECT_TRUE(left_.contains(task.chunk));
      } else {
        complete(task.chunk);
        expected_[task.chunk] = 1;
        device_[key(weight_region(one_.plan, slots_, task.chunk))].version = 1;
      }
    }
    if (host) ++host_version_[task.chunk];
  }

  void end(const Schedule& schedule) {
    EXPECT_TRUE(live_.empty());
    const auto blocks = static_cast<Id>(one_.spec.blocks.size());
    const bool training = step_.graph == Graph::kTrain;
    for (Id block = 0; step_.graph != Graph::kDrain && block < blocks; ++block) {
      const bool layer = one_.spec.blocks[block].kind == BlockKind::kLayer;
      const bool recompute = layer && traits(one_.plan.activation[block]).recompute;
      for (Id m = 0; m < step_.micro_batches; ++m) {
        const bool head = block + 1 == blocks;
        EXPECT_EQ((calls_[{block, m, Pass::kForward}]), !training || recompute ? 1 : 0);
        EXPECT_EQ((calls_[{block, m, Pass::kForwardKeep}]), training && !head ? 1 : 0);
        EXPECT_EQ((calls_[{block, m, Pass::kBackward}]), training ? 1 : 0);
      }
    }
    EXPECT_EQ(updates_pending_, step_.pending);
    for (Id chunk = 0; chunk < static_cast<Id>(one_.chunks.size()); ++chunk) {
      const bool host = one_.plan.place[chunk] == UpdatePlace::kCpu;
      EXPECT_EQ(normed_.count(chunk), training ? 1u : 0u);
      EXPECT_EQ(left_.count(chunk), training && host ? 1u : 0u);
      EXPECT_EQ(updated_.count(chunk), training && (!host || !step_.clip) ? 1u : 0u);
      // What has a home on the device is current there; what a slot is said to hold, too.
      if (host && slots_.weight[chunk] < 0) {
        EXPECT_EQ((device_[{Region::kWeightHome, chunk}]), (Weight{chunk, host_version_[chunk]}));
      }
    }
    for (Id slot = 0; slot < static_cast<Id>(schedule.slots_after.size()); ++slot) {
      const Weight held = device_[{Region::kWeightSlot, slot}];
      const bool current = held.chunk >= 0 && held.version == host_version_[held.chunk];
      EXPECT_EQ(schedule.slots_after[slot], current ? held.chunk : -1);
    }
  }

  const Case& one_;
  const StepShape& step_;
  const Slots slots_;
  const std::vector<std::vector<ChunkUse>> uses_;
  std::vector<Range> whole_, live_;
  Bytes high_ = 0, sum_ = 0, most_ = 0;
  std::map<Range, std::string, Less> holds_;
  std::vector<int> host_version_, expected_;  // by chunk
  std::map<Key, Weight> device_;              // weights
  std::map<Id, Turns> sums_, rounded_;
  std::map<std::tuple<Id, Id, Pass>, int> calls_;
  std::set<Id> normed_, left_, updated_;
  std::vector<Id> updates_pending_;
  int loads_ = 0;
};

}  // namespace protrain::test
