// Owns where every byte of weights and optimizer state of this process lives. Knows no tensor.
//
// Thread safety: const methods any thread; read and write not while a schedule runs.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "block/block.h"
#include "device/device.h"
#include "memory/arena.h"
#include "plan/plan.h"

namespace protrain {

// One a tier that the layout uses (kDevice, kPinned, kPageable); null where it has no bytes.
using Arenas = std::array<Arena*, 4>;

class ChunkStore {
 public:
  // The store keeps references: all of these outlive it.
  ChunkStore(const ModelSpec&, const std::vector<Chunk>&, const Layout&, const RunShape&, const Plan&, Device&,
             const Arenas&);
  ~ChunkStore();

  const ModelSpec& spec() const;
  DType compute() const;
  std::byte* at(const Range&) const;  // any tier
  Range home(Id chunk, Part) const;   // where the truth is: device or host, as the chunk's place says
  bool has(Id chunk, Part) const;
  // Range of one parameter's part; its true elements only, no padding.
  Range parameter(Id parameter, Part) const;

  // Host <-> the parameter's part, element [first, first + count): raw bytes of part_dtype. Staged, any size,
  // synchronous. Writing a weight of a kCpu chunk also writes its device home, if it has one. Not while updates are
  // pending (InternalError): drain first.
  void read(Id parameter, Part, std::int64_t first, std::int64_t count, std::byte* to) const;
  void write(Id parameter, Part, std::int64_t first, std::int64_t count, const std::byte* from);
  // The fp32 master of elements [first, first + count), whatever the compute dtype. write_master rounds the weight and
  // keeps the residual (bf16 compute); m and v are not touched.
  void read_master(Id parameter, std::int64_t first, std::int64_t count, float* to) const;
  void write_master(Id parameter, std::int64_t first, std::int64_t count, const float* from);
  void zero_moments();

  // Addresses for a block, in the order of its BlockSpec; stable for the whole run: homes and slots. `first` as in
  // ParameterBytes.
  std::vector<ParameterBytes> bind(Id block, bool first) const;

  // Counts the updates applied to a chunk, and of which the host knows: StepRunner's books.
  std::int64_t version(Id chunk) const;
  void set_version(Id chunk, std::int64_t update);
  bool pending() const;
  void set_pending(bool);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
