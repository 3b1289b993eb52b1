#include "tensor/hooks.h"

#include "base/error.h"
#include "tensor/scratch.h"

namespace protrain::hooks {
namespace {

thread_local bool own_session = false;

void nothing(void*) {}

}  // namespace

Shared& shared() {
  static Shared* const shared = new Shared;  // outlives every tensor of the process
  return *shared;
}

void enter(Session& session) {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  PROTRAIN_CHECK(s.installed, "install_allocator() comes first");
  PROTRAIN_CHECK(s.active == nullptr, "one call at a time records or replays");
  s.active = &session;
  s.owner = std::this_thread::get_id();
  own_session = true;
}

void leave(Session& session) noexcept {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  if (s.active != &session) return;
  s.active = nullptr;
  own_session = false;
}

bool in_session() {
  if (own_session) return true;
  Shared& s = shared();
  if (s.kind == DeviceKind::kCpu) return false;
  const std::lock_guard lock(s.mutex);
  return s.active != nullptr;
}

void* new_plain(Bytes bytes) {
  Shared& s = shared();
  void* const memory = s.plain.allocate(bytes);
  s.owned.insert(memory);
  return memory;
}

Served allocate(Bytes bytes) {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  if (s.scratch != nullptr) {
    if (void* const memory = s.scratch->allocate(bytes)) return {memory, &deleter};
    PROTRAIN_CHECK(false, "a scratch of {} bytes has no room for {} more", s.scratch->bytes(), bytes);
  }
  return s.active->allocate({bytes, std::this_thread::get_id() != s.owner});
}

Served allocate_outside(Bytes bytes) {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  if (s.library) {
    s.library_bytes += round_up(bytes, kAlignment);
    if (s.library_next != nullptr) {
      std::byte* const memory = s.library_next;
      s.library_next += round_up(bytes, kAlignment);
      PROTRAIN_CHECK(s.library_next <= s.library_end, "library workspaces have outgrown their region");
      return {memory, &nothing};
    }
    return {new_plain(bytes), &deleter};
  }
  ++s.counts.plain;
  return {new_plain(bytes), &deleter};
}

bool release(void* memory) {
  if (memory == nullptr) return true;
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  if (s.scratch != nullptr && s.scratch->release(memory)) return true;
  const Released released = s.active == nullptr ? Released::kNotOurs : s.active->release(memory);
  if (released != Released::kNotOurs) s.released.notify_all();
  if (released == Released::kInPlace) return true;
  if (s.owned.erase(memory) == 0) return released != Released::kNotOurs;
  s.plain.release(memory);
  return true;
}

void deleter(void* memory) { release(memory); }

}  // namespace protrain::hooks
