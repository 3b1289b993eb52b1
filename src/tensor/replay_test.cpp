#include "tensor/replay.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "tensor/call_trace.h"
#include "tensor/hooks.h"

namespace protrain {
namespace {

constexpr Bytes kPiece = 1000;

at::Tensor piece(Bytes bytes = kPiece) { return at::empty({bytes}, at::kByte); }

class Replay : public ::testing::Test {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    reset_allocator_counts();
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
    places_.saved = memory_.data() + (kAlignment - start % kAlignment) % kAlignment;
    places_.workspace = places_.saved + 64 * kKiB;
    places_.results[0] = places_.saved + 128 * kKiB;
    places_.results[1] = places_.saved + 160 * kKiB;
  }

  // Two transients that live together, one that may take the first one's place, one saved, one result.
  static void call(at::Tensor& kept, const std::function<void(const at::Tensor&)>& result = [](const auto&) {}) {
    at::Tensor first = piece();
    kept = piece(kPiece + 1);
    const at::Tensor second = piece(2 * kPiece);
    first.reset();
    const at::Tensor third = piece();
    result(piece(3 * kPiece));
  }

  static std::shared_ptr<const CallTrace> record() {
    at::Tensor kept;
    RecordScope scope(true);
    call(kept, [&](const at::Tensor& y) { scope.result(1, y.const_data_ptr(), 3 * kPiece); });
    return scope.finish();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(256 * kKiB);
  ReplayPlaces places_;
};

TEST_F(Replay, SavedLieBackToBackAndTransientsSharePlaces) {
  const auto trace = record();
  ASSERT_EQ(trace->allocations.size(), 5U);
  EXPECT_EQ(memory_of(*trace).saved, 1024);
  EXPECT_EQ(memory_of(*trace).workspace, 1024 + 2048);
  EXPECT_EQ(memory_of(*trace).workspace_bound, 1024 + 2048);
  EXPECT_EQ(trace->allocations[4].where, TraceClass::kResult);
  EXPECT_TRUE(alike(*trace, *record()));
}

// Autograd's thread lets go of its last tensors while the calling one does: in any order.
TEST_F(Replay, ReleasesBetweenTwoAllocationsHaveNoOrder) {
  const auto record_releasing = [](bool first_last) {
    RecordScope scope(false);
    at::Tensor first = piece(), second = piece(2 * kPiece);
    (first_last ? second : first).reset();
    (first_last ? first : second).reset();
    piece();
    return scope.finish();
  };
  const auto one = record_releasing(false), other = record_releasing(true);
  EXPECT_TRUE(alike(*one, *other));
  EXPECT_EQ(memory_of(*one).workspace, 1024 + 2048);
}

TEST_F(Replay, ServesPlannedAddressesAndNothingElse) {
  const auto trace = record();
  reset_allocator_counts();
  at::Tensor kept;
  ReplayScope scope(*trace, places_);
  call(kept, [&](const at::Tensor& y) { EXPECT_EQ(y.const_data_ptr(), places_.results[1]); });
  EXPECT_EQ(kept.const_data_ptr(), places_.saved);
  scope.finish();
  EXPECT_EQ(allocator_counts().mismatches, 0);
  EXPECT_EQ(allocator_counts().replayed, 5);
  EXPECT_EQ(allocator_counts().plain, 0);
}

// A workspace may be LibTorch's own memory: its first transient then has the address of a piece that is not let go.
TEST_F(Replay, ATransientAtTheStartOfPlainMemoryDoesNotFreeIt) {
  const auto trace = record();
  hooks::Shared& shared = hooks::shared();
  const auto locked = [&](auto action) {
    const std::lock_guard lock(shared.mutex);
    return action();
  };
  void* const plain = locked([] { return hooks::new_plain(8 * kKiB); });
  const auto owned = [&] { return locked([&] { return shared.owned.contains(plain); }); };
  places_.workspace = static_cast<std::byte*>(plain);
  at::Tensor kept;
  ReplayScope scope(*trace, places_);
  call(kept);
  scope.finish();
  EXPECT_TRUE(owned());
  EXPECT_TRUE(hooks::release(plain));
  EXPECT_FALSE(owned());
}

TEST_F(Replay, AnotherSizeOfATransientIsCountedAndServedElsewhere) {
  const auto trace = record();
  ReplayScope scope(*trace, places_);
  const at::Tensor other = piece(kPiece + 7);
  EXPECT_TRUE(other.const_data_ptr() < memory_.data() || other.const_data_ptr() >= memory_.data() + memory_.size());
  EXPECT_EQ(allocator_counts().mismatches, 1);
}

TEST_F(Replay, AnotherSizeOfWhatTheCallKeepsIsAnInternalError) {
  const auto trace = record();
  ReplayScope scope(*trace, places_);
  const at::Tensor first = piece();
  EXPECT_THROW(piece(kPiece + 2), InternalError);
}

TEST_F(Replay, NothingIsServedOverWhatIsStillAlive) {
  const auto trace = record();
  ReplayScope scope(*trace, places_);
  const at::Tensor first = piece(), kept = piece(kPiece + 1), second = piece(2 * kPiece);
  const at::Tensor third = piece();  // recorded in the place of `first`, which has not died
  EXPECT_NE(third.const_data_ptr(), first.const_data_ptr());
  EXPECT_EQ(allocator_counts().mismatches, 1);
}

TEST_F(Replay, ATransientThatOutlivesItsCallIsAnInternalError) {
  const auto trace = record();
  at::Tensor escaped, kept;
  ReplayScope scope(*trace, places_);
  {
    const at::Tensor first = piece();
    kept = piece(kPiece + 1);
    escaped = piece(2 * kPiece);
  }
  piece();
  piece(3 * kPiece);
  EXPECT_THROW(scope.finish(), InternalError);
}

TEST_F(Replay, AMissingAllocationIsCounted) {
  const auto trace = record();
  ReplayScope scope(*trace, places_);
  piece();
  scope.finish();
  EXPECT_EQ(allocator_counts().mismatches, 1);
}

TEST_F(Replay, ACallThatKeepsNothingMayLeaveNothing) {
  at::Tensor kept;
  RecordScope scope(false);
  kept = piece();
  EXPECT_THROW(scope.finish(), InternalError);
}

TEST_F(Replay, AResultThatTheCallHoldsOnToIsSaved) {
  at::Tensor kept;
  RecordScope scope(true);
  kept = piece();
  scope.result(0, kept.const_data_ptr(), kPiece);
  const auto trace = scope.finish();
  EXPECT_EQ(trace->allocations[0].where, TraceClass::kSaved);
}

TEST_F(Replay, OtherThreadsAndEmptyRequestsPassThrough) {
  at::Tensor kept;
  RecordScope scope(true);
  std::thread([&] { kept = piece(); }).join();
  const at::Tensor empty = piece(0);
  EXPECT_TRUE(scope.finish()->allocations.empty());
}

TEST_F(Replay, AScratchStandsForAnyAllocationsInside) {
  const auto with = [](std::initializer_list<Bytes> sizes) {
    const ScratchScope scratch(4096);
    std::vector<at::Tensor> pieces;
    for (const Bytes size : sizes) pieces.push_back(piece(size));
    for (const at::Tensor& each : pieces) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each.const_data_ptr()) % 64, 0U);
  };
  RecordScope record(false);
  with({1000, 1000});
  const auto trace = record.finish();
  ASSERT_EQ(trace->allocations.size(), 1U);
  EXPECT_EQ(memory_of(*trace).workspace, 4096);
  ReplayScope scope(*trace, places_);
  with({512, 512, 512, 1, 2000});
  scope.finish();
  EXPECT_EQ(allocator_counts().mismatches, 0);
  with({});
}

TEST_F(Replay, AScratchTakesBackWhatIsFreedAndRefusesMore) {
  RecordScope record(false);
  {
    const ScratchScope scratch(1024);
    for (int i = 0; i < 5; ++i) piece(1024);
    const at::Tensor all = piece(1024);
    EXPECT_THROW(piece(1), InternalError);
  }
  EXPECT_EQ(record.finish()->allocations.size(), 1U);
}

TEST_F(Replay, ReplayWithoutMemoryIsAnInternalError) {
  const auto trace = record();
  for (std::byte** each : {&places_.saved, &places_.workspace, &places_.results[1]}) {
    std::byte* const before = std::exchange(*each, nullptr);
    EXPECT_THROW(ReplayScope(*trace, places_), InternalError);
    *each = before;
  }
  ReplayScope(*trace, places_);
}

}  // namespace
}  // namespace protrain
