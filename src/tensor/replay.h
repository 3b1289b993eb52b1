// LibTorch's allocations inside a block's call, recorded once and then served at planned addresses.
//
// Note [Replay]: the sequence of allocations of a call depends on code and shapes only. Recording: run the call under a
// RecordScope (after warming up, so that lazily made library state is there), on plain memory. Each allocation is saved
// (alive at the end of a call that keeps something), a result (named by result(), gone at the end) or a transient;
// saved ones are laid back to back, transients packed on their lifetimes, results lie where the caller wants them.
// Replay: under a ReplayScope the k-th allocation gets its planned address; size and thread are checked, and that
// nothing still alive lies there. A mismatch is counted and, in saved or result, an InternalError; a transient is
// served from plain memory and logged once. A transient that outlives its call is an InternalError. Zero-byte requests
// are not counted.
//
// install_allocator() comes before anything else of LibTorch allocates (CUDA: before CUDA starts). Outside the scopes
// it serves plain memory (CPU: LibTorch's own; CUDA: cudaMalloc with a cache of its own, counted; users of one stream).
// One scope at a time a process. CPU: requests of other threads pass through. CUDA: those of any thread belong to the
// call, as autograd works on a thread of its own, and nobody else may ask LibTorch for device memory meanwhile.
#pragma once
#include <memory>
#include <string>

#include "device/device.h"
#include "plan/profile.h"

namespace protrain {

void install_allocator(DeviceKind);  // again: nothing, for the same kind

class CallTrace;  // the allocations of one kind of call, laid out; immutable

// Results of a call that may be made in place: BlockCall::output, input_gradient.
inline constexpr int kCallResults = 2;

class RecordScope {
 public:
  explicit RecordScope(bool keeps);  // keeps: what is alive at the end is saved, else nothing may be
  ~RecordScope();
  RecordScope(const RecordScope&) = delete;
  RecordScope& operator=(const RecordScope&) = delete;
  // What starts at `memory` and was asked for with `bytes` becomes the call's result, unless it outlives the call (then
  // it is saved). Others: nothing.
  void result(int which, const void* memory, Bytes bytes);
  std::shared_ptr<const CallTrace> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

CallMemory memory_of(const CallTrace&);

// Where a call's allocations go; null only where the trace has none.
struct ReplayPlaces {
  std::byte* saved = nullptr;
  std::byte* workspace = nullptr;
  std::byte* results[kCallResults] = {};
};

class ReplayScope {
 public:
  ReplayScope(const CallTrace&, const ReplayPlaces&);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;
  void finish();  // checks that everything came and went as recorded; without it (an error) nothing is checked

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Inside, allocations of an operator depend on data (packed attention on the CPU): one allocation of `bytes` (the worst
// case) stands for them in the trace and serves them, each from a multiple of kAlignment. None of them outlives it.
// Outside record and replay it does nothing. `bytes` is a function of shape. InternalError when they do not fit.
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

// Workspaces that libraries keep between calls (cuBLAS, one a thread and stream): makes those of the calling thread and
// of autograd's for this stream, in `memory` (null: plain memory), and returns their bytes; those made before are let
// go. 0 on the CPU. Recording and replay need them to be there; no work may be under way.
Bytes make_library_workspaces(const Stream&, DeviceKind, std::byte* memory, Bytes bytes);
// Gives plain memory that nobody uses, and the library workspaces, back to the driver.
void release_plain_memory(DeviceKind);

struct AllocatorCounts {
  std::int64_t plain = 0;  // allocations served outside scopes, since the last reset
  std::int64_t team = 0;   // CPU: pieces that a kernel's other threads asked for during a call; host scratch, as MKL's
  std::int64_t replayed = 0;
  std::int64_t mismatches = 0;
};
AllocatorCounts allocator_counts();
void reset_allocator_counts();

}  // namespace protrain
