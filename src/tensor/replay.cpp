#include "tensor/replay.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "tensor/call_trace.h"
#include "tensor/hooks.h"

namespace protrain {
namespace {

// Autograd's thread lets go of its last task a little after the call has its result; more than this is a fault.
constexpr std::chrono::seconds kLateRelease{5};

void nothing(void*) {}

// Waits until the worker has released what it still held. The lock is the hooks'.
void wait_for_releases(std::unique_lock<std::mutex>& lock, const hooks::Session& session) {
  hooks::Shared& s = hooks::shared();
  if (s.kind == DeviceKind::kCpu) return;
  s.released.wait_for(lock, kLateRelease, [&] { return session.alive() == 0; });
}

}  // namespace

// ---- Record

struct RecordScope::State final : hooks::Session {
  explicit State(bool keeps_in) : keeps(keeps_in) {}

  hooks::Served allocate(const hooks::Request& request) override {
    void* const memory = hooks::new_plain(request.bytes);
    live[memory] = made.size();
    made.push_back({.bytes = request.bytes, .born = count(), .worker = request.worker});
    return {memory, &hooks::deleter};
  }
  hooks::Released release(void* memory) override {
    const auto found = live.find(memory);
    if (found == live.end()) return hooks::Released::kNotOurs;
    made[found->second].died = count();
    live.erase(found);
    return hooks::Released::kPlain;
  }
  std::int64_t alive() const override { return static_cast<std::int64_t>(live.size()); }

  // The clock: releases between two allocations have no order among themselves, as autograd's thread may make some
  // late.
  std::int32_t count() const { return static_cast<std::int32_t>(made.size()); }

  const bool keeps;
  std::vector<TracedAllocation> made;
  std::unordered_map<void*, std::size_t> live;
};

RecordScope::RecordScope(bool keeps) : state_(std::make_unique<State>(keeps)) { hooks::enter(*state_); }

RecordScope::~RecordScope() { hooks::leave(*state_); }

void RecordScope::result(int which, const void* memory, Bytes bytes) {
  PROTRAIN_CHECK(which >= 0 && which < kCallResults);
  const std::lock_guard lock(hooks::shared().mutex);
  const auto found = state_->live.find(const_cast<void*>(memory));
  if (found == state_->live.end()) return;
  TracedAllocation& one = state_->made[found->second];
  if (one.bytes != bytes || one.where == TraceClass::kResult) return;
  one.where = TraceClass::kResult;
  one.result = which;
}

std::shared_ptr<const CallTrace> RecordScope::finish() {
  {
    std::unique_lock lock(hooks::shared().mutex);
    if (!state_->keeps) wait_for_releases(lock, *state_);
  }
  hooks::leave(*state_);
  return std::make_shared<const CallTrace>(lay_out(std::move(state_->made), state_->keeps));
}

// ---- Replay

struct ReplayScope::State final : hooks::Session {
  State(const CallTrace& trace_in, const ReplayPlaces& places_in)
      : trace(trace_in), places(places_in), alive_flags(trace.allocations.size(), false) {}

  hooks::Served allocate(const hooks::Request& request) override {
    const std::size_t k = next++;
    if (k >= trace.allocations.size()) return mismatch(request, k, "more allocations than recorded");
    const TracedAllocation& planned = trace.allocations[k];
    const bool same = planned.bytes == request.bytes && planned.worker == request.worker;
    if (planned.where != TraceClass::kTransient) {
      if (!same) {
        ++hooks::shared().counts.mismatches;
        PROTRAIN_CHECK(false, "allocation {} of a call: {} bytes, recorded were {} of what it keeps", k, request.bytes,
                       planned.bytes);
      }
      ++hooks::shared().counts.replayed;
      std::byte* const base =
          planned.where == TraceClass::kSaved ? places.saved : places.results[static_cast<std::size_t>(planned.result)];
      return {base + planned.offset, &nothing};
    }
    if (!same) return mismatch(request, k, "another size or thread than recorded");
    for (const std::int32_t other : planned.under) {
      if (alive_flags[static_cast<std::size_t>(other)]) return mismatch(request, k, "what lies there is still alive");
    }
    ++hooks::shared().counts.replayed;
    std::byte* const memory = places.workspace + planned.offset;
    live[memory] = k;
    alive_flags[k] = true;
    return {memory, &hooks::deleter};
  }

  hooks::Released release(void* memory) override {
    const auto found = live.find(memory);
    if (found == live.end()) return hooks::Released::kNotOurs;
    alive_flags[found->second] = false;
    live.erase(found);
    return hooks::Released::kInPlace;
  }
  std::int64_t alive() const override { return static_cast<std::int64_t>(live.size()); }

  // Plain memory serves it: a leak of order costs memory beyond the plan, not the run.
  hooks::Served mismatch(const hooks::Request& request, std::size_t k, const char* why) {
    hooks::Shared& s = hooks::shared();
    if (s.counts.mismatches++ == 0) {
      log::warning("allocation {} of {} in a block's call ({} bytes) came unplanned: {}; it is served beside the plan",
                   k, trace.allocations.size(), request.bytes, why);
    }
    return {hooks::new_plain(request.bytes), &hooks::deleter};
  }

  const CallTrace& trace;
  const ReplayPlaces places;
  std::size_t next = 0;
  std::vector<bool> alive_flags;  // of transients
  std::unordered_map<void*, std::size_t> live;
};

ReplayScope::ReplayScope(const CallTrace& trace, const ReplayPlaces& places)
    : state_(std::make_unique<State>(trace, places)) {
  PROTRAIN_CHECK(trace.memory.saved == 0 || places.saved != nullptr, "no memory for what the call keeps");
  PROTRAIN_CHECK(trace.memory.workspace == 0 || places.workspace != nullptr, "no workspace for the call");
  for (const TracedAllocation& one : trace.allocations) {
    PROTRAIN_CHECK(one.where != TraceClass::kResult || places.results[static_cast<std::size_t>(one.result)] != nullptr,
                   "no place for the call's result");
  }
  hooks::enter(*state_);
}

ReplayScope::~ReplayScope() { hooks::leave(*state_); }

void ReplayScope::finish() {
  hooks::Shared& s = hooks::shared();
  std::int64_t alive = 0;
  {
    std::unique_lock lock(s.mutex);
    wait_for_releases(lock, *state_);
    alive = state_->alive();
    if (state_->next != state_->trace.allocations.size()) ++s.counts.mismatches;
    if (alive != 0) ++s.counts.mismatches;
  }
  hooks::leave(*state_);
  PROTRAIN_CHECK(alive == 0, "{} transient allocations of a call outlive it", alive);
}

// ---- Counts

AllocatorCounts allocator_counts() {
  hooks::Shared& s = hooks::shared();
  const std::lock_guard lock(s.mutex);
  return s.counts;
}

void reset_allocator_counts() {
  hooks::Shared& s = hooks::shared();
  const std::lock_guard lock(s.mutex);
  s.counts = {};
}

}  // namespace protrain
