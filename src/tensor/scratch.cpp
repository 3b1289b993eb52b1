#include "tensor/scratch.h"

#include "base/error.h"
#include "tensor/hooks.h"

namespace protrain {
namespace hooks {

Scratch::Scratch(std::byte* memory, Bytes bytes) : memory_(memory), bytes_(bytes) {}

void* Scratch::allocate(Bytes bytes) {
  const Bytes wanted = round_up(bytes, kAlignment);
  Bytes offset = 0;
  for (const auto& [first, size] : used_) {
    if (first - offset >= wanted) break;
    offset = first + size;
  }
  if (offset + wanted > bytes_) return nullptr;
  used_.emplace(offset, wanted);
  return memory_ + offset;
}

bool Scratch::release(void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  if (at < memory_ || at >= memory_ + bytes_) return false;
  return used_.erase(at - memory_) != 0;
}

}  // namespace hooks

struct ScratchScope::State {
  State(std::byte* memory, Bytes bytes, hooks::Deleter deleter_in) : scratch(memory, bytes), deleter(deleter_in) {}
  hooks::Scratch scratch;
  hooks::Deleter deleter;
};

ScratchScope::ScratchScope(Bytes bytes) {
  if (bytes == 0 || !hooks::in_session()) return;
  hooks::Shared& s = hooks::shared();
  {
    const std::lock_guard lock(s.mutex);
    if (s.scratch != nullptr) return;  // the outer one serves
  }
  const Bytes whole = round_up(bytes, kAlignment);
  const hooks::Served served = hooks::allocate(whole);
  state_ = std::make_unique<State>(static_cast<std::byte*>(served.memory), whole, served.deleter);
  const std::lock_guard lock(s.mutex);
  s.scratch = &state_->scratch;
}

ScratchScope::~ScratchScope() {
  if (!state_) return;
  hooks::Shared& s = hooks::shared();
  {
    const std::lock_guard lock(s.mutex);
    // What is left is lost to the next user of these bytes.
    if (!state_->scratch.empty()) ++s.counts.mismatches;
    s.scratch = nullptr;
  }
  state_->deleter(state_->scratch.memory());
}

}  // namespace protrain
