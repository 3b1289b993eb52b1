#include "tensor/trace_book.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/call_trace.h"

namespace protrain {
namespace {

std::string text_of(const TraceKey& key) {
  const CallKey& call = key.call;
  const BatchShape& shape = call.shape;
  return fmt::format("{}, pass {}{}{}{}, {} x {} tokens, {}{} samples, gradients [{}]", call.trace,
                     static_cast<int>(call.pass), call.light ? ", light" : "", call.training ? "" : ", evaluation",
                     key.value ? "" : ", graph alone", shape.rows, shape.row_tokens, shape.packed ? "packed " : "",
                     shape.max_samples, key.gradients);
}

}  // namespace

std::string gradient_kinds(std::span<const ParameterBytes> parameters) {
  std::string kinds;
  kinds.reserve(parameters.size());
  for (const ParameterBytes& one : parameters) {
    const bool wide = one.gradient_dtype == DType::kF32;
    kinds.push_back(one.gradient == nullptr ? '-' : wide ? (one.first ? 'F' : 'f') : (one.first ? 'C' : 'c'));
  }
  return kinds;
}

std::vector<Profile::Call> TraceBook::calls() const {
  std::vector<Profile::Call> calls;
  for (const auto& [text, entry] : entries_) {
    const auto same =
        std::find_if(calls.begin(), calls.end(), [&](const Profile::Call& call) { return call.key == entry.call; });
    const CallMemory memory = memory_of(*entry.trace);
    if (same == calls.end()) {
      calls.push_back({entry.call, memory});
      continue;
    }
    same->memory.saved = std::max(same->memory.saved, memory.saved);
    same->memory.workspace = std::max(same->memory.workspace, memory.workspace);
    same->memory.workspace_bound = std::max(same->memory.workspace_bound, memory.workspace_bound);
  }
  return calls;
}

void TraceBook::place_library(std::byte* memory, Bytes bytes) {
  library_ = memory;
  library_bytes_ = bytes;
  prepared_stream_ = nullptr;
  prepared_thread_ = {};
}

const CallTrace& TraceBook::find(const TraceKey& key) const {
  const auto found = entries_.find(text_of(key));
  PROTRAIN_CHECK(found != entries_.end(), "no call like this was recorded: {}", text_of(key));
  return *found->second.trace;
}

void TraceBook::add(const TraceKey& key, std::shared_ptr<const CallTrace> trace) {
  const std::string text = text_of(key);
  const auto [entry, added] = entries_.try_emplace(text, Entry{key.call, trace});
  PROTRAIN_CHECK(added || alike(*entry->second.trace, *trace), "allocations differ from run to run: {}", text);
}

// Workspaces belong to a stream and a thread; after a failed step the run goes on with a new stream.
void TraceBook::prepare(const Stream& stream) {
  if (device_ == DeviceKind::kCpu) return;
  const std::thread::id thread = std::this_thread::get_id();
  if (stream.native() == prepared_stream_ && thread == prepared_thread_) return;
  make_library_workspaces(stream, device_, library_, library_bytes_);
  prepared_stream_ = stream.native();
  prepared_thread_ = thread;
}

CallScope::CallScope(TraceBook* book, const TraceKey& key, const BlockCall& call)
    : book_(book), key_(key), call_(call) {
  if (book_ == nullptr || book_->mode() == TraceBook::Mode::kPlain) return;
  const bool keeps = key.call.pass == Pass::kForwardKeep;
  if (book_->mode() == TraceBook::Mode::kRecord) {
    record_.emplace(keeps);
    return;
  }
  const CallTrace& trace = book_->find(key);
  book_->prepare(*call.stream);
  replay_.emplace(trace, ReplayPlaces{call.saved, call.workspace, {call.output, call.input_gradient}});
}

bool CallScope::result(const void* memory, Bytes bytes, const std::byte* wanted) {
  if (record_) {
    PROTRAIN_CHECK(wanted == call_.output || wanted == call_.input_gradient, "a result that nobody asked for");
    record_->result(wanted == call_.output ? 0 : 1, memory, bytes);
  }
  return memory == wanted;
}

void CallScope::finish() {
  if (record_) book_->add(key_, record_->finish());
  if (replay_) replay_->finish();
  record_.reset();
  replay_.reset();
}

}  // namespace protrain
