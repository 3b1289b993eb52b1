// Turns a token file into the batches of each step: packing, sampling order with an exact position, a thread that is always
// ahead. A Sampler is a pure function of (files, options, position); thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "block/batch.h"
#include "data/token_file.h"

namespace protrain {

struct SamplingOptions {
  std::int64_t cutoff_len = 2048;      // longest row; a longer sample is split when `split_long`, else truncated
  bool split_long = false;
  bool packing = false;
  bool shuffle = true;
  std::uint64_t seed = 42;
  std::int64_t micro_batch = 8;        // rows
  std::int64_t accumulation = 1;
};

// The order of rows: an epoch visits every row once, in an order that is a function of (seed, epoch) only. A row is one
// sample, or (packing) several whole samples of at most cutoff_len tokens together.
struct StepBatch {
  BatchShape shape;                    // of every micro-batch of this step
  std::int64_t micro_batches = 0;      // <= accumulation: a shorter last update of an epoch is still an update
  std::int64_t tokens = 0;             // real tokens, padding not counted
  std::int64_t supervised_tokens = 0;
  double epoch = 0;                    // after this step
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual std::int64_t steps_per_epoch() const = 0;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t dropped_samples() const = 0;     // without a supervised token within cutoff_len
  virtual std::vector<BatchShape> shapes() const = 0;   // planned shapes, largest first
  // Writes the micro-batches of update `step` (from 0, over all epochs) as batch_layout says, one after the other, each
  // batch_layout(shape).bytes apart. Any order of calls; thread-safe.
  virtual StepBatch fill(std::int64_t step, std::byte* to) const = 0;
};
// Error(kData) when no row is left.
std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const TokenFile>, const SamplingOptions&,
                                               const std::string& file);

// Reads ahead on its own thread into two buffers of its own.
class Loader {
 public:
  Loader(const BatchSource&, std::int64_t first_step, std::int64_t end_step);
  ~Loader();
  // Step `step`, in order from first_step: copies into `to`. Errors of the thread come out here.
  StepBatch next(std::byte* to);
  double stalled_seconds() const;      // time that next() had to wait

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
