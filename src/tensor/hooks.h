// Between LibTorch's allocators and the scopes of replay.h: who serves a request. Internal to tensor/.
//
// Thread safety: everything, any thread; one mutex guards what scopes share.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "tensor/replay.h"

namespace protrain::hooks {

using Deleter = void (*)(void*);

// Memory of the back end itself.
struct Plain {
  void* (*allocate)(Bytes) = nullptr;  // throws when there is none
  void (*release)(void*) = nullptr;
};

struct Request {
  Bytes bytes = 0;
  bool worker = false;  // not made by the scope's own thread
};

struct Served {
  void* memory = nullptr;
  Deleter deleter = nullptr;
};

// What a session says of memory that is let go.
enum class Released : std::uint8_t {
  kNotOurs,
  kInPlace,  // a transient inside the caller's workspace: whose first byte may be that of a plain piece that goes on
  kPlain,    // a transient of plain memory, which is now free
};

// What a scope does with the requests of its call. Called with the mutex held.
class Session {
 public:
  virtual ~Session() = default;
  virtual Served allocate(const Request&) = 0;
  virtual Released release(void*) = 0;
  virtual std::int64_t alive() const = 0;  // transients given out and not released
};

class Scratch;

struct Shared {
  std::mutex mutex;
  std::condition_variable released;
  bool installed = false;
  DeviceKind kind = DeviceKind::kCpu;
  Plain plain;
  Session* active = nullptr;
  std::thread::id owner;              // of the active session
  Scratch* scratch = nullptr;         // serves the active session's requests while it is there
  std::unordered_set<void*> owned;    // plain memory that was given out
  std::byte* library_next = nullptr;  // while library workspaces are made: their place
  std::byte* library_end = nullptr;
  Bytes library_bytes = 0;  // given out to make_library_workspaces()
  bool library = false;
  AllocatorCounts counts;
};
Shared& shared();

// Becomes the one session of the process, owned by the calling thread.
void enter(Session&);
void leave(Session&) noexcept;

// Whether the calling thread's requests belong to a session. CPU: its own thread's; CUDA: any thread's, since autograd
// works on a thread of its own and nobody else asks for device memory meanwhile.
bool in_session();
Served allocate(Bytes bytes);          // in_session() only; bytes > 0
Served allocate_outside(Bytes bytes);  // plain, counted
bool release(void*);                   // whether it was served here, or null; not what a call keeps
void deleter(void*);                   // release(), of all that is served here

// With the mutex held.
void* new_plain(Bytes bytes);

}  // namespace protrain::hooks
