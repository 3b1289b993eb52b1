#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "data/loader.h"
#include "data/row_index.h"
#include "data/shuffle.h"

namespace protrain {
namespace {

// Sample starts are int32 token numbers of a micro-batch.
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostAccumulation = 1 << 20;

using Order = std::shared_ptr<const std::vector<std::int64_t>>;

// Typed arrays of one micro-batch.
struct Arrays {
  std::int32_t* tokens;
  std::int32_t* labels;
  std::int32_t* positions;
  std::int32_t* sample_starts;
};

Arrays arrays_at(std::byte* range, const BatchLayout& layout) {
  const auto at = [&](Bytes offset) { return reinterpret_cast<std::int32_t*>(range + offset); };
  return {at(layout.tokens), at(layout.labels), at(layout.positions), at(layout.sample_starts)};
}

void count_up(std::int32_t* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::int32_t>(i);
}

// What the longest row needs, and never above cutoff_len: a model may have no more positions.
std::int64_t longest_bucket(std::int64_t cutoff_len, std::int64_t longest_row) {
  constexpr std::int64_t kMultiple = 16;  // matrices whose sides are odd are slow
  return std::min(cutoff_len, round_up(longest_row, kMultiple));
}

// Row lengths of unpacked steps: the longest and its halves down to a sixteenth, in multiples of 8. Longest first.
std::vector<std::int64_t> length_buckets(std::int64_t longest) {
  std::vector<std::int64_t> buckets = {longest};
  for (const std::int64_t divisor : {2, 4, 8, 16}) {
    const std::int64_t bucket = round_up(ceil_div(longest, divisor), 8);
    if (bucket < buckets.back()) buckets.push_back(bucket);
  }
  return buckets;
}

class Sampler : public BatchSource {
 public:
  Sampler(std::shared_ptr<const TokenFile> file, const SamplingOptions& options, RowIndex index)
      : file_(std::move(file)),
        options_(options),
        index_(std::move(index)),
        micro_batch_(std::min(options_.micro_batch, index_.rows())) {
    const std::int64_t longest = longest_bucket(options_.cutoff_len, index_.longest_row);
    buckets_ = options_.packing ? std::vector{longest} : length_buckets(longest);
  }

  std::int64_t rows() const override { return index_.rows(); }
  std::int64_t dropped_samples() const override { return index_.dropped_samples; }
  std::int64_t steps_per_epoch() const override { return ceil_div(rows(), rows_per_step()); }

  std::vector<BatchShape> shapes() const override {
    std::vector<BatchShape> shapes;
    shapes.reserve(buckets_.size());
    for (const std::int64_t bucket : buckets_) shapes.push_back(shape_of(bucket));
    return shapes;
  }

  Bytes step_bytes() const override {
    const std::int64_t most = ceil_div(std::min(rows_per_step(), rows()), micro_batch_);
    return most * batch_layout(shape_of(buckets_.front())).bytes;
  }

  StepBatch fill(std::int64_t step, std::byte* to) const override;

 private:
  struct Scratch {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint8_t> supervised;
  };

  std::int64_t rows_per_step() const { return options_.micro_batch * options_.accumulation; }

  BatchShape shape_of(std::int64_t row_tokens) const {
    BatchShape shape;
    shape.rows = micro_batch_;
    shape.row_tokens = row_tokens;
    shape.packed = options_.packing;
    // A packed row may end in padding, which is a sample too.
    shape.max_samples = shape.packed ? shape.rows * (index_.most_pieces + 1) : shape.rows;
    return shape;
  }

  Order order_of(std::int64_t epoch) const;
  std::int64_t row_at(const Order& order, std::int64_t place) const {
    return order == nullptr ? place : (*order)[static_cast<std::size_t>(place)];
  }
  std::span<const Piece> pieces_of(std::int64_t row) const {
    const auto begin = static_cast<std::size_t>(index_.begins[static_cast<std::size_t>(row)]);
    const auto end = static_cast<std::size_t>(index_.begins[static_cast<std::size_t>(row) + 1]);
    return std::span(index_.pieces).subspan(begin, end - begin);
  }
  std::int64_t bucket_for(std::int64_t longest) const {
    std::int64_t best = buckets_.front();
    for (const std::int64_t bucket : buckets_) {
      if (bucket >= longest) best = bucket;
    }
    return best;
  }
  std::int64_t write_piece(const Piece&, std::int32_t* tokens, std::int32_t* labels, Scratch*) const;

  const std::shared_ptr<const TokenFile> file_;
  const SamplingOptions options_;
  const RowIndex index_;
  const std::int64_t micro_batch_;     // rows; no more than there are
  std::vector<std::int64_t> buckets_;  // longest first

  mutable std::mutex order_mutex_;
  // The two epochs used last: a reader ahead may be one epoch beyond another caller.
  mutable std::int64_t order_epochs_[2] = {-1, -1};
  mutable Order orders_[2];
};

Order Sampler::order_of(std::int64_t epoch) const {
  if (!options_.shuffle) return nullptr;
  const std::size_t place = static_cast<std::size_t>(epoch % 2);
  const std::lock_guard lock(order_mutex_);
  if (order_epochs_[place] != epoch) {
    orders_[place] = std::make_shared<const std::vector<std::int64_t>>(
        permutation(rows(), options_.seed, static_cast<std::uint64_t>(epoch)));
    order_epochs_[place] = epoch;
  }
  return orders_[place];
}

// Returns the number of supervised labels.
std::int64_t Sampler::write_piece(const Piece& piece, std::int32_t* tokens, std::int32_t* labels,
                                  Scratch* scratch) const {
  const std::int64_t length = piece.length;
  const std::int64_t seen = length + (piece.continues ? 1 : 0);  // with the token that is the last label
  if (static_cast<std::int64_t>(scratch->tokens.size()) < seen) {
    scratch->tokens.resize(static_cast<std::size_t>(seen));
    scratch->supervised.resize(static_cast<std::size_t>(seen));
  }
  const std::int32_t* const ids = scratch->tokens.data();
  const std::uint8_t* const supervised = scratch->supervised.data();
  file_->read(piece.first, seen, scratch->tokens.data(), scratch->supervised.data());
  std::memcpy(tokens, ids, static_cast<std::size_t>(length) * sizeof *tokens);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i + 1 < seen; ++i) {
    labels[i] = supervised[i + 1] != 0 ? ids[i + 1] : kIgnoredLabel;
    count += supervised[i + 1];
  }
  if (!piece.continues) labels[length - 1] = kIgnoredLabel;
  return count;
}

StepBatch Sampler::fill(std::int64_t step, std::byte* to) const {
  PROTRAIN_CHECK(step >= 0, "step {}", step);
  const std::int64_t epoch = step / steps_per_epoch();
  const std::int64_t first = step % steps_per_epoch() * rows_per_step();
  const std::int64_t count = std::min(rows_per_step(), rows() - first);
  const Order order = order_of(epoch);

  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < count && !options_.packing; ++i) {
    longest = std::max<std::int64_t>(longest, pieces_of(row_at(order, first + i)).front().length);
  }

  StepBatch batch;
  batch.shape = shape_of(options_.packing ? buckets_.front() : bucket_for(longest));
  batch.micro_batches = ceil_div(count, micro_batch_);
  batch.epoch = static_cast<double>(epoch) + static_cast<double>(first + count) / static_cast<double>(rows());
  const BatchLayout layout = batch_layout(batch.shape);
  const std::int64_t row_tokens = batch.shape.row_tokens;
  const std::int64_t all_tokens = batch.shape.tokens();

  Scratch scratch;
  for (std::int64_t m = 0; m < batch.micro_batches; ++m) {
    std::byte* const range = to + m * layout.bytes;
    std::memset(range, 0, static_cast<std::size_t>(layout.bytes));  // padding tokens, and the gaps between arrays
    const Arrays arrays = arrays_at(range, layout);
    std::int64_t samples = 0;
    for (std::int64_t r = 0; r < batch.shape.rows; ++r) {
      const std::int64_t place = m * micro_batch_ + r;
      const std::int64_t base = r * row_tokens;
      std::int64_t used = 0;  // tokens of this row
      const std::span<const Piece> pieces =
          place < count ? pieces_of(row_at(order, first + place)) : std::span<const Piece>();
      for (const Piece& piece : pieces) {
        PROTRAIN_CHECK(piece.length <= row_tokens - used && samples < batch.shape.max_samples);
        arrays.sample_starts[samples++] = static_cast<std::int32_t>(base + used);
        batch.supervised_tokens +=
            write_piece(piece, arrays.tokens + base + used, arrays.labels + base + used, &scratch);
        count_up(arrays.positions + base + used, piece.length);
        used += piece.length;
      }
      batch.tokens += used;
      std::fill(arrays.labels + base + used, arrays.labels + base + row_tokens, kIgnoredLabel);
      if (used == row_tokens) continue;
      if (batch.shape.packed || pieces.empty()) {
        PROTRAIN_CHECK(samples < batch.shape.max_samples);
        arrays.sample_starts[samples++] = static_cast<std::int32_t>(base + used);
        count_up(arrays.positions + base + used, row_tokens - used);
      } else {
        count_up(arrays.positions + base, row_tokens);
      }
    }
    std::fill(arrays.sample_starts + samples, arrays.sample_starts + batch.shape.max_samples + 1,
              static_cast<std::int32_t>(all_tokens));
  }
  return batch;
}

void check_options(const SamplingOptions& options) {
  if (options.cutoff_len < 2) {
    fail(ExitCode::kConfig, "cutoff_len: {}; a row needs at least 2 tokens to have a label", options.cutoff_len);
  }
  if (options.micro_batch < 1) fail(ExitCode::kConfig, "micro-batch: {} rows; at least 1", options.micro_batch);
  if (options.accumulation < 1) fail(ExitCode::kConfig, "accumulation: {}; at least 1", options.accumulation);
  if (options.cutoff_len > kMostTokens) {
    fail(ExitCode::kConfig, "cutoff_len: {}; at most {}", options.cutoff_len, kMostTokens);
  }
  if (options.accumulation > kMostAccumulation) {
    fail(ExitCode::kConfig, "accumulation: {}; at most {}", options.accumulation, kMostAccumulation);
  }
}

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const TokenFile> tokens, const SamplingOptions& options,
                                               const std::string& file) {
  PROTRAIN_CHECK(tokens != nullptr);
  check_options(options);
  RowIndex index = index_rows(*tokens, options);
  if (index.rows() == 0) {
    fail(ExitCode::kData, "{}: none of its {} samples has a supervised token within cutoff_len {}", file,
         tokens->samples(), options.cutoff_len);
  }
  const std::int64_t row_tokens = longest_bucket(options.cutoff_len, index.longest_row);
  const std::int64_t micro_batch = std::min(options.micro_batch, index.rows());
  if (row_tokens > kMostTokens / micro_batch) {
    fail(ExitCode::kConfig, "{}: a micro-batch of {} rows of {} tokens has more than {}; lower cutoff_len or its rows",
         file, micro_batch, row_tokens, kMostTokens);
  }
  return std::make_unique<Sampler>(std::move(tokens), options, std::move(index));
}

}  // namespace protrain
