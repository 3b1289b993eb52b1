// The traces of all kinds of calls of a model's blocks, and the scope that each call runs in. The blocks of one model
// share a book: they are run plainly, then recorded (profile/), then replayed for the rest of the run.
//
// Thread safety: one thread, the one that runs the blocks.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tensor/replay.h"

namespace protrain {

// Beside what the plan knows, a call's allocations depend on whether its result is wanted, and a backward's on where
// gradients go and whether they are added.
struct TraceKey {
  CallKey call;
  bool value = true;
  std::string gradients = {};  // gradient_kinds(); of kBackward only
};
std::string gradient_kinds(std::span<const ParameterBytes>);

class TraceBook {
 public:
  // kPlain: LibTorch allocates as it likes. kRecord: each call is recorded; a kind that is there already must come out
  // alike (InternalError). kReplay: a kind that is not there is an InternalError naming it.
  enum class Mode : std::uint8_t { kPlain, kRecord, kReplay };

  explicit TraceBook(DeviceKind device) : device_(device) {}
  void set_mode(Mode mode) { mode_ = mode; }
  Mode mode() const { return mode_; }
  DeviceKind device() const { return device_; }

  // What each call of the plan needs: the largest of its kinds.
  std::vector<Profile::Call> calls() const;
  // Where library workspaces lie from now on (Region::kLibrary); they are made anew with the first call of a stream.
  void place_library(std::byte* memory, Bytes bytes);

 private:
  friend class CallScope;
  struct Entry {
    CallKey call;
    std::shared_ptr<const CallTrace> trace;
  };
  const CallTrace& find(const TraceKey&) const;
  void add(const TraceKey&, std::shared_ptr<const CallTrace>);
  void prepare(const Stream&);

  const DeviceKind device_;
  Mode mode_ = Mode::kPlain;
  std::map<std::string, Entry, std::less<>> entries_;
  std::byte* library_ = nullptr;
  Bytes library_bytes_ = 0;
  const void* prepared_stream_ = nullptr;
  std::thread::id prepared_thread_;
};

// One call of a block, as the book's mode has it; `book` null: plain. Every tensor of the call but the results' views
// and what the graph keeps is gone when finish() comes.
class CallScope {
 public:
  CallScope(TraceBook* book, const TraceKey&, const BlockCall&);
  // A result is ready in `bytes` at `memory`, contiguous, and wanted at `wanted` (the call's output or input_gradient).
  // Whether it lies there already; else the caller copies it, with no allocation.
  bool result(const void* memory, Bytes bytes, const std::byte* wanted);
  void finish();

 private:
  TraceBook* book_;
  const TraceKey& key_;
  const BlockCall& call_;
  std::optional<RecordScope> record_;
  std::optional<ReplayScope> replay_;
};

}  // namespace protrain
