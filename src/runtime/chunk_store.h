// Owns where every byte of weights and optimizer state of this process lives. Knows no tensor.
//
// Thread safety: const methods any thread; version(), raise_version(), loaded(), current() any thread too, calls that
// concern one chunk or slot ordered by the caller. The rest not while a schedule runs.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "block/block.h"
#include "device/device.h"
#include "memory/arena.h"
#include "plan/plan.h"

namespace protrain {

class ChunkStore {
 public:
  // The store keeps references: all of these outlive it. Acquires the whole-run regions of every tier; the destructor
  // releases them.
  ChunkStore(const ModelSpec&, const std::vector<Chunk>&, const Layout&, const RunShape&, const Plan&, Device&,
             const Arenas&);
  ~ChunkStore();

  const ModelSpec& spec() const;
  DType compute() const;
  std::byte* at(const Range&) const;  // any tier
  Range home(Id chunk, Part) const;   // where the truth is: device or host, as the chunk's place says
  bool has(Id chunk, Part) const;

  // Host <-> the parameter's part, element [first, first + count): raw bytes of part_dtype. Staged, any size,
  // synchronous; with a pool, host bytes over its threads. Writing a weight of a kCpu chunk also writes its device
  // home, if it has one. Not while updates are pending (InternalError): drain first.
  void read(Id parameter, Part, std::int64_t first, std::int64_t count, std::byte* to) const;
  void write(Id parameter, Part, std::int64_t first, std::int64_t count, const std::byte* from,
             ThreadPool* pool = nullptr);
  // The fp32 master of elements [first, first + count), whatever the compute dtype. write_master rounds the weight and
  // keeps the residual (bf16 compute); m and v are not touched. With a pool, over its threads.
  void read_master(Id parameter, std::int64_t first, std::int64_t count, float* to) const;
  void write_master(Id parameter, std::int64_t first, std::int64_t count, const float* from,
                    ThreadPool* pool = nullptr);
  void zero_moments(ThreadPool* pool = nullptr);

  // Addresses for a block, in the order of its BlockSpec; stable for the whole run: homes and slots. `first` as in
  // ParameterBytes.
  std::vector<ParameterBytes> bind(Id block, bool first) const;

  // Note [Versions]: a kCpu chunk's weight has its truth on the host and a copy on the device, in its home or its slot.
  // The version rises with every change of the host's weight; a copy is good for the version that it was loaded from,
  // so a block that would run on a stale copy is found. Which chunk a slot holds is not in these books: a short chunk
  // may come into a slot while the rest of the one before is still in use (StepRunner reads the loads of its
  // schedules).
  std::int64_t version(Id chunk) const;
  void raise_version(Id chunk);
  void loaded(Id chunk);         // the copy of its present weight has been issued
  bool current(Id chunk) const;  // the last copy was of the present weight; always so for kResident chunks
  void forget_copies();          // a copy has failed, who knows which: none is current
  void load_stale_homes();       // synchronous; slots are left as they are

  bool pending() const;  // StepRunner's flag: host weights wait for an update
  void set_pending(bool);

  // StepRunner's: an update was left half done, by a failure that the text names. Nobody knows what the weights are any
  // more: from here on read() and write() are InternalErrors with that text, so that no checkpoint is made of them.
  void set_lost(std::string why);
  void check_not_lost() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
