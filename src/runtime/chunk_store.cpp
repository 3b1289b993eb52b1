#include "runtime/chunk_store.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "optimizer/adamw.h"

namespace protrain {

namespace {

// Masters are split and joined in pieces of this many elements: 4 MiB of fp32.
constexpr std::int64_t kPieceElements = 1 << 20;

}  // namespace

struct ChunkStore::State {
  const ModelSpec& spec;
  const std::vector<Chunk>& chunks;
  const Layout& layout;
  DType compute;
  std::byte* arena;
  std::vector<Place> where;       // by parameter
  std::vector<Id> last_block;     // by parameter: the first one to write its gradient in a backward
  std::vector<bool> accumulated;  // by parameter
  std::unique_ptr<Stream> stream;
  std::mutex mutex;  // one issuing thread at a time

  State(const ModelSpec& spec_in, const std::vector<Chunk>& chunks_in, const Layout& layout_in, const RunShape& shape,
        Device& device, std::byte* arena_in)
      : spec(spec_in),
        chunks(chunks_in),
        layout(layout_in),
        compute(shape.compute),
        arena(arena_in),
        where(places(spec, chunks)),
        last_block(spec.parameters.size(), -1),
        stream(device.stream("store")) {
    for (Id block = 0; block < static_cast<Id>(spec.blocks.size()); ++block) {
      for (const Id parameter : spec.blocks[block].parameters) last_block[parameter] = block;
    }
    for (Id id = 0; id < static_cast<Id>(spec.parameters.size()); ++id) {
      accumulated.push_back(accumulates(spec, shape, id));
    }
  }

  Range elements(Id parameter, Part part, std::int64_t first, std::int64_t count) const {
    const ParameterSpec& about = spec.parameters.at(parameter);
    PROTRAIN_CHECK(first >= 0 && count >= 0 && first + count <= about.elements(),
                   "elements {} to {} of {}, which has {}", first, first + count, about.name, about.elements());
    const Place& place = where[parameter];
    const Bytes width = size_of(part_dtype(part, compute));
    Range range = layout.find(Region::kState, place.chunk * kParts + static_cast<Id>(part));
    range.offset += (place.offset + first) * width;
    range.bytes = count * width;
    return range;
  }

  std::byte* at(const Range& range) const {
    PROTRAIN_CHECK(range.tier == Tier::kDevice, "the store has no other tier");
    return arena + range.offset;
  }

  void copy(std::byte* to, const std::byte* from, Bytes bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex);
    stream->copy(to, from, bytes);
    stream->synchronize();
  }
};

ChunkStore::ChunkStore(const ModelSpec& spec, const std::vector<Chunk>& chunks, const Layout& layout,
                       const RunShape& shape, Device& device, std::byte* device_arena)
    : state_(std::make_unique<State>(spec, chunks, layout, shape, device, device_arena)) {}

ChunkStore::~ChunkStore() = default;

const ModelSpec& ChunkStore::spec() const { return state_->spec; }
DType ChunkStore::compute() const { return state_->compute; }
std::byte* ChunkStore::at(const Range& range) const { return state_->at(range); }

Range ChunkStore::home(Id chunk, Part part) const {
  return state_->layout.find(Region::kState, chunk * kParts + static_cast<Id>(part));
}

bool ChunkStore::has(Id chunk, Part part) const {
  return state_->layout.contains(Region::kState, chunk * kParts + static_cast<Id>(part));
}

Range ChunkStore::parameter(Id parameter, Part part) const {
  return state_->elements(parameter, part, 0, state_->spec.parameters.at(parameter).elements());
}

void ChunkStore::read(Id parameter, Part part, std::int64_t first, std::int64_t count, std::byte* to) const {
  const Range range = state_->elements(parameter, part, first, count);
  state_->copy(to, at(range), range.bytes);
}

void ChunkStore::write(Id parameter, Part part, std::int64_t first, std::int64_t count, const std::byte* from) {
  const Range range = state_->elements(parameter, part, first, count);
  state_->copy(at(range), from, range.bytes);
}

void ChunkStore::read_master(Id parameter, std::int64_t first, std::int64_t count, float* to) const {
  if (compute() == DType::kF32) {
    read(parameter, Part::kWeight, first, count, reinterpret_cast<std::byte*>(to));
    return;
  }
  std::vector<std::uint16_t> weight(std::min(count, kPieceElements));
  std::vector<std::int16_t> residual(weight.size());
  for (std::int64_t done = 0; done < count; done += kPieceElements) {
    const std::int64_t n = std::min(kPieceElements, count - done);
    read(parameter, Part::kWeight, first + done, n, reinterpret_cast<std::byte*>(weight.data()));
    read(parameter, Part::kResidual, first + done, n, reinterpret_cast<std::byte*>(residual.data()));
    join_masters(weight.data(), residual.data(), to + done, n);
  }
}

void ChunkStore::write_master(Id parameter, std::int64_t first, std::int64_t count, const float* from) {
  if (compute() == DType::kF32) {
    write(parameter, Part::kWeight, first, count, reinterpret_cast<const std::byte*>(from));
    return;
  }
  std::vector<std::uint16_t> weight(std::min(count, kPieceElements));
  std::vector<std::int16_t> residual(weight.size());
  for (std::int64_t done = 0; done < count; done += kPieceElements) {
    const std::int64_t n = std::min(kPieceElements, count - done);
    split_masters(from + done, weight.data(), residual.data(), n);
    write(parameter, Part::kWeight, first + done, n, reinterpret_cast<const std::byte*>(weight.data()));
    write(parameter, Part::kResidual, first + done, n, reinterpret_cast<const std::byte*>(residual.data()));
  }
}

void ChunkStore::zero_moments() {
  const std::lock_guard lock(state_->mutex);
  for (Id chunk = 0; chunk < static_cast<Id>(state_->chunks.size()); ++chunk) {
    for (const Part part : {Part::kM, Part::kV}) {
      const Range range = home(chunk, part);
      state_->stream->zero(at(range), range.bytes);
    }
  }
  state_->stream->synchronize();
}

std::vector<ParameterBytes> ChunkStore::bind(Id block, bool first) const {
  std::vector<ParameterBytes> bound;
  for (const Id id : state_->spec.blocks.at(block).parameters) {
    const Part part = state_->accumulated[id] ? Part::kAccumulator : Part::kGradient;
    ParameterBytes bytes;
    bytes.weight = at(parameter(id, Part::kWeight));
    bytes.gradient = at(parameter(id, part));
    bytes.gradient_dtype = part_dtype(part, compute());
    // Backward comes to a tied matrix twice, at the head first: the embedding adds.
    bytes.first = first && state_->last_block[id] == block;
    bound.push_back(bytes);
  }
  return bound;
}

}  // namespace protrain
