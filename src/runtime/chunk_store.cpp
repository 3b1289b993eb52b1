#include "runtime/chunk_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "optimizer/adamw.h"

namespace protrain {

namespace {

// Masters are split and joined in pieces of this many elements: 4 MiB of fp32.
constexpr std::int64_t kPieceElements = 1 << 20;

// Relaxed: who may touch one at the same time is decided by the schedule's edges, and a fence here would hide a missing
// one from ThreadSanitizer.
class Cell {
 public:
  explicit Cell(std::int64_t value = 0) : value_(value) {}
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_;
};

constexpr std::int64_t kNoVersion = -1;

constexpr std::int64_t kGrainBytes = 256 * kKiB;

// fn(begin, end) on ranges of [0, n); over the pool, if there is one.
void over(ThreadPool* pool, std::int64_t n, std::int64_t grain,
          const std::function<void(std::int64_t, std::int64_t)>& fn) {
  if (pool != nullptr) {
    pool->parallel_for(n, grain, fn);
  } else if (n > 0) {
    fn(0, n);
  }
}

}  // namespace

struct ChunkStore::State {
  const ModelSpec& spec;
  const std::vector<Chunk>& chunks;
  const Layout& layout;
  const DType compute;
  const Arenas arenas;
  const std::vector<Place> where;        // by parameter
  std::vector<RegionKey> weights;        // by chunk: what blocks read
  std::vector<bool> on_host;             // by chunk: of place kCpu
  std::vector<GradientRegions> targets;  // by chunk
  std::vector<Id> last_block;            // by parameter: the first one to write its gradient in a backward
  std::vector<Cell> versions;            // by chunk
  std::vector<Cell> copies;              // by chunk: the version of its copy on the device
  bool pending = false;
  std::string lost;  // why; empty: they are not
  Device& device;
  std::unique_ptr<Stream> stream;  // null until it is used
  std::mutex mutex;                // one issuing thread at a time

  State(const ModelSpec& spec_in, const std::vector<Chunk>& chunks_in, const Layout& layout_in, const RunShape& shape,
        const Plan& plan, Device& device_in, const Arenas& arenas_in)
      : spec(spec_in),
        chunks(chunks_in),
        layout(layout_in),
        compute(shape.compute),
        arenas(arenas_in),
        where(places(spec, chunks)),
        last_block(spec.parameters.size(), -1),
        versions(chunks.size()),
        copies(chunks.size()),
        device(device_in) {
    for (Id block = 0; block < static_cast<Id>(spec.blocks.size()); ++block) {
      for (const Id parameter : spec.blocks[block].parameters) last_block[parameter] = block;
    }
    const Slots rotation = slots(chunks, plan);
    for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
      on_host.push_back(plan.place.at(chunk) == UpdatePlace::kCpu);
      weights.push_back(weight_region(plan, rotation, chunk));
      targets.push_back(gradient_regions(spec, chunks, shape, plan, rotation, chunk));
    }
    forget();
  }

  void forget() {
    for (Cell& copy : copies) copy.set(kNoVersion);
  }

  Arena& arena(Tier tier) const {
    Arena* arena = arenas.at(static_cast<std::size_t>(tier));
    PROTRAIN_CHECK(arena != nullptr, "no arena of tier {}", static_cast<int>(tier));
    return *arena;
  }
  std::byte* at(const Range& range) const { return arena(range.tier).at(range); }

  Range state(Id chunk, Part part) const { return layout.find(Region::kState, chunk * kParts + static_cast<Id>(part)); }
  bool has_home(Id chunk) const { return layout.contains(Region::kWeightHome, chunk); }

  // Elements of the parameter inside a region that holds its whole chunk.
  Range inside(const Range& whole, Id parameter, DType type, std::int64_t first, std::int64_t count) const {
    const Bytes width = size_of(type);
    const Range range{whole.tier, whole.offset + (where[parameter].offset + first) * width, count * width};
    PROTRAIN_CHECK(range.offset + range.bytes <= whole.offset + whole.bytes, "{} lies outside its region",
                   spec.parameters[parameter].name);
    return range;
  }

  Range elements(Id parameter, Part part, std::int64_t first, std::int64_t count) const {
    const ParameterSpec& about = spec.parameters.at(parameter);
    PROTRAIN_CHECK(first >= 0 && count >= 0 && first + count <= about.elements(),
                   "elements {} to {} of {}, which has {}", first, first + count, about.name, about.elements());
    return inside(state(where[parameter].chunk, part), parameter, part_dtype(part, compute), first, count);
  }

  void copy(const Range& range, std::byte* to, const std::byte* from, ThreadPool* pool = nullptr) {
    if (range.bytes == 0) return;
    if (range.tier != Tier::kDevice) {
      over(pool, range.bytes, kGrainBytes, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
      });
      return;
    }
    on_stream([&](Stream& own) { own.copy(to, from, range.bytes); });
  }

  // Returns when the work has ended. An error stays with its stream: the next work gets a new one.
  void on_stream(const std::function<void(Stream&)>& work) {
    const std::lock_guard lock(mutex);
    if (!stream) stream = device.stream("store");
    try {
      work(*stream);
      stream->synchronize();
    } catch (...) {
      stream.reset();
      throw;
    }
  }

  void check_not_lost() const {
    if (!lost.empty()) throw InternalError(lost);
  }
  void check_readable() const {
    check_not_lost();
    PROTRAIN_CHECK(!pending, "weights are read or written while updates are pending");
  }
};

ChunkStore::ChunkStore(const ModelSpec& spec, const std::vector<Chunk>& chunks, const Layout& layout,
                       const RunShape& shape, const Plan& plan, Device& device, const Arenas& arenas)
    : state_(std::make_unique<State>(spec, chunks, layout, shape, plan, device, arenas)) {
  for (const Layout::Entry& entry : layout.entries) {
    if (entry.whole_run && entry.range.bytes > 0) {
      state_->arena(entry.range.tier).acquire(entry.range, region_name(entry.region));
    }
  }
}

ChunkStore::~ChunkStore() {
  for (const Layout::Entry& entry : state_->layout.entries) {
    if (entry.whole_run && entry.range.bytes > 0) state_->arena(entry.range.tier).release(entry.range);
  }
}

const ModelSpec& ChunkStore::spec() const { return state_->spec; }
DType ChunkStore::compute() const { return state_->compute; }
std::byte* ChunkStore::at(const Range& range) const { return state_->at(range); }
Range ChunkStore::home(Id chunk, Part part) const { return state_->state(chunk, part); }

bool ChunkStore::has(Id chunk, Part part) const {
  return state_->layout.contains(Region::kState, chunk * kParts + static_cast<Id>(part));
}

void ChunkStore::read(Id parameter, Part part, std::int64_t first, std::int64_t count, std::byte* to) const {
  state_->check_readable();
  const Range range = state_->elements(parameter, part, first, count);
  state_->copy(range, to, at(range));
}

void ChunkStore::write(Id parameter, Part part, std::int64_t first, std::int64_t count, const std::byte* from,
                       ThreadPool* pool) {
  state_->check_readable();
  const Range range = state_->elements(parameter, part, first, count);
  state_->copy(range, at(range), from, pool);
  const Id chunk = state_->where[parameter].chunk;
  if (part != Part::kWeight || !state_->on_host[chunk]) return;
  // A home that was current stays so; a slot is stale now.
  const bool follows = state_->has_home(chunk) && current(chunk);
  raise_version(chunk);
  if (!state_->has_home(chunk)) return;
  const Range copy = state_->inside(state_->layout.find(state_->weights[chunk]), parameter, compute(), first, count);
  state_->copy(copy, at(copy), from);
  if (follows) loaded(chunk);
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

void ChunkStore::write_master(Id parameter, std::int64_t first, std::int64_t count, const float* from,
                              ThreadPool* pool) {
  if (compute() == DType::kF32) {
    write(parameter, Part::kWeight, first, count, reinterpret_cast<const std::byte*>(from), pool);
    return;
  }
  std::vector<std::uint16_t> weight(std::min(count, kPieceElements));
  std::vector<std::int16_t> residual(weight.size());
  for (std::int64_t done = 0; done < count; done += kPieceElements) {
    const std::int64_t n = std::min(kPieceElements, count - done);
    over(pool, n, kGrainBytes / 4, [&](std::int64_t begin, std::int64_t end) {
      split_masters(from + done + begin, weight.data() + begin, residual.data() + begin, end - begin);
    });
    write(parameter, Part::kWeight, first + done, n, reinterpret_cast<const std::byte*>(weight.data()), pool);
    write(parameter, Part::kResidual, first + done, n, reinterpret_cast<const std::byte*>(residual.data()), pool);
  }
}

void ChunkStore::zero_moments(ThreadPool* pool) {
  state_->check_readable();
  state_->on_stream([&](Stream& stream) {
    for (Id chunk = 0; chunk < static_cast<Id>(state_->chunks.size()); ++chunk) {
      for (const Part part : {Part::kM, Part::kV}) {
        const Range range = home(chunk, part);
        if (range.tier == Tier::kDevice) {
          stream.zero(at(range), range.bytes);
        } else {
          over(pool, range.bytes, kGrainBytes, [&](std::int64_t begin, std::int64_t end) {
            std::memset(at(range) + begin, 0, static_cast<std::size_t>(end - begin));
          });
        }
      }
    }
  });
}

std::vector<ParameterBytes> ChunkStore::bind(Id block, bool first) const {
  std::vector<ParameterBytes> bound;
  for (const Id id : state_->spec.blocks.at(block).parameters) {
    const Id chunk = state_->where[id].chunk;
    const std::int64_t count = state_->spec.parameters[id].elements();
    const GradientRegions& regions = state_->targets[chunk];
    ParameterBytes bytes;
    bytes.gradient_dtype = regions.sum_dtype;
    const Range gradient = state_->layout.find(regions.sum);
    bytes.weight = at(state_->inside(state_->layout.find(state_->weights[chunk]), id, compute(), 0, count));
    bytes.gradient = at(state_->inside(gradient, id, bytes.gradient_dtype, 0, count));
    // Backward comes to a tied matrix twice, at the head first: the embedding adds.
    bytes.first = first && state_->last_block[id] == block;
    bound.push_back(bytes);
  }
  return bound;
}

std::int64_t ChunkStore::version(Id chunk) const { return state_->versions.at(chunk).get(); }

void ChunkStore::raise_version(Id chunk) { state_->versions.at(chunk).set(version(chunk) + 1); }

void ChunkStore::loaded(Id chunk) { state_->copies.at(chunk).set(version(chunk)); }

bool ChunkStore::current(Id chunk) const {
  return !state_->on_host.at(chunk) || state_->copies.at(chunk).get() == version(chunk);
}

void ChunkStore::forget_copies() { state_->forget(); }

void ChunkStore::load_stale_homes() {
  for (Id chunk = 0; chunk < static_cast<Id>(state_->chunks.size()); ++chunk) {
    if (!state_->has_home(chunk) || current(chunk)) continue;
    const Range to = state_->layout.find(state_->weights[chunk]), from = home(chunk, Part::kWeight);
    PROTRAIN_CHECK(to.bytes == from.bytes, "chunk {}: {} bytes for {}", chunk, from.bytes, to.bytes);
    state_->copy(to, at(to), at(from));
    loaded(chunk);
  }
}

bool ChunkStore::pending() const { return state_->pending; }
void ChunkStore::set_pending(bool pending) { state_->pending = pending; }

void ChunkStore::set_lost(std::string why) { state_->lost = std::move(why); }
void ChunkStore::check_not_lost() const { state_->check_not_lost(); }

}  // namespace protrain
