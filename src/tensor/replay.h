// LibTorch's allocations inside a block's call, recorded once and then served at planned addresses.
//
// Note [Replay]: the sequence of allocations of a call depends on code and shapes only. recording: run the call under a
// RecordScope (after warming up twice, so that lazily made library state is there), on plain memory. Each allocation is
// kSaved (alive at the end), kOutput (the tensor named by set_output) or kTransient; saved ones are laid back to back,
// transients packed on their lifetimes. Replay: under a ReplayScope the k-th allocation gets its planned address; size,
// thread and stream are checked, and that no range still alive is handed out again. A mismatch is counted and, in saved or
// output, an InternalError; a transient is served from plain memory and logged once. Zero-byte requests are not counted.
//
// install_allocator() comes before anything else of LibTorch allocates (CUDA: before CUDA starts). Outside the scopes it
// serves plain memory (CPU: LibTorch's own; CUDA: cudaMalloc with a small cache of its own, counted).
// One scope at a time a process; threads that are no part of the call (neither its own nor autograd's) pass through.
#pragma once
#include <memory>
#include <string>

#include "device/device.h"
#include "plan/profile.h"

namespace protrain {

void install_allocator(DeviceKind);

class CallTrace;  // the allocations of one kind of call, laid out; immutable

class RecordScope {
 public:
  explicit RecordScope(DeviceKind);
  ~RecordScope();
  RecordScope(const RecordScope&) = delete;
  RecordScope& operator=(const RecordScope&) = delete;
  std::shared_ptr<const CallTrace> finish();  // what is alive now is saved

 private:
  struct State;
  std::unique_ptr<State> state_;
};

CallMemory memory_of(const CallTrace&);

class ReplayScope {
 public:
  ReplayScope(const CallTrace&, std::byte* saved, std::byte* workspace);
  ~ReplayScope();  // a mismatch in number is counted here
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Inside, allocations of an operator depend on data (packed attention on the CPU): one allocation of `bytes` (the worst
// case) stands for them in the trace and serves them.
class ScratchScope {
 public:
  explicit ScratchScope(Bytes bytes);
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct AllocatorCounts {
  std::int64_t plain = 0;       // allocations served outside scopes, since the last reset
  std::int64_t replayed = 0;
  std::int64_t mismatches = 0;
};
AllocatorCounts allocator_counts();
void reset_allocator_counts();

}  // namespace protrain
