// Turns a token file into the batches of each step: packing, sampling order with an exact position, a thread that is
// always ahead. A BatchSource is a pure function of (file, options, step): resume needs the step's number and nothing
// else.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block/batch.h"
#include "data/token_file.h"

namespace protrain {

struct SamplingOptions {
  // Longest row. A longer sample is truncated (its last kept token has no label) or, when `split_long`, cut into pieces
  // that are rows of their own; the last label of a piece is then the first token of the next, so every supervised
  // token but a sample's first is a target exactly once an epoch, whatever the cut.
  std::int64_t cutoff_len = 2048;
  bool split_long = false;
  bool packing = false;
  bool shuffle = true;
  std::uint64_t seed = 42;
  std::int64_t micro_batch = 8;  // rows; a source with fewer plans for those that it has
  std::int64_t accumulation = 1;
};

// The order of rows: an epoch visits every row once, in an order that is a function of (seed, epoch) only. A row is one
// sample, or (packing) several whole samples of at most cutoff_len tokens together; packs are made once, from (seed),
// so every epoch has the same number of steps. Step s takes the next micro_batch x accumulation rows of the epoch, the
// last step of an epoch what is left; its last micro-batch is filled up with rows of padding. Planned rows are as long
// as the data needs, cutoff_len at most.
struct StepBatch {
  BatchShape shape;                    // of every micro-batch of this step
  std::int64_t micro_batches = 0;      // <= accumulation: a shorter last update of an epoch is still an update
  std::int64_t tokens = 0;             // real tokens, padding not counted
  std::int64_t supervised_tokens = 0;  // labels that are not kIgnoredLabel
  double epoch = 0;                    // after this step
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual std::int64_t steps_per_epoch() const = 0;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t dropped_samples() const = 0;    // without a supervised token within cutoff_len
  virtual std::vector<BatchShape> shapes() const = 0;  // planned shapes, largest first
  virtual Bytes step_bytes() const = 0;                // the most that one fill writes
  // Writes the micro-batches of update `step` (from 0, over all epochs) as batch_layout says, one after the other, each
  // batch_layout(shape).bytes apart. Any order of calls; thread-safe. Padding has token 0, label kIgnoredLabel and
  // positions; unpacked, a row's tail belongs to its sample, packed, it is a sample of its own.
  virtual StepBatch fill(std::int64_t step, std::byte* to) const = 0;
};
// Error(kData) naming `file` when no row is left; Error(kConfig) for an option out of range.
std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const TokenFile>, const SamplingOptions&,
                                               const std::string& file);

// Reads ahead on its own thread into two buffers of its own. One consumer; the source outlives it.
class Loader {
 public:
  Loader(const BatchSource&, std::int64_t first_step, std::int64_t end_step);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  // The next step, in order from first_step: copies into `to` (room for source.step_bytes()). Errors of the thread come
  // out here, at the step they belong to and at every later call.
  StepBatch next(std::byte* to);
  double stalled_seconds() const;  // time that next() had to wait, in total

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
