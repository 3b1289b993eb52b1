// A small model run block by block, first plainly and then replayed at fixed addresses full of NaN patterns.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "model/model.h"
#include "profile/memory.h"
#include "tensor/tensor.h"

namespace protrain::test {

inline const std::vector<std::pair<std::string, std::string>>& families() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"gpt2", R"({"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 64,
                   "vocab_size": 503, "attn_pdrop": 0, "resid_pdrop": 0.1, "embd_pdrop": 0.1})"},
      {"opt", R"({"model_type": "opt", "hidden_size": 48, "ffn_dim": 112, "num_hidden_layers": 2,
                  "num_attention_heads": 3, "max_position_embeddings": 64, "vocab_size": 503, "dropout": 0.1,
                  "attention_dropout": 0, "pad_token_id": 1, "word_embed_proj_dim": 48})"},
      {"opt_post_norm",
       R"({"model_type": "opt", "hidden_size": 48, "ffn_dim": 112, "num_hidden_layers": 2,
                            "num_attention_heads": 3, "max_position_embeddings": 64, "vocab_size": 503, "dropout": 0,
                            "attention_dropout": 0, "pad_token_id": 1, "word_embed_proj_dim": 24,
                            "do_layer_norm_before": false})"},
      {"llama", R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})"},
      {"mistral", R"({"model_type": "mistral", "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96,
                      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
                      "sliding_window": 8})"},
      {"qwen2", R"({"model_type": "qwen2", "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "tie_word_embeddings": true})"},
      {"qwen3", R"({"model_type": "qwen3", "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24})"},
  };
  return all;
}

enum class Keep { kAll, kLight, kSwapped, kRecompute };

// Losses and gradients of one step, and evaluation losses, as bytes.
struct StepBits {
  std::vector<std::byte> losses, gradients, evaluation;
  bool operator==(const StepBits&) const = default;
};

class Rig {
 public:
  Rig(const std::string& config, DType compute, DeviceKind kind, const BatchShape& shape, std::int64_t accumulation)
      : arch_(parse_architecture(config, "config.json")),
        spec_(make_spec(arch_)),
        kind_(kind),
        device_(kind == DeviceKind::kCuda ? make_cuda_device(0) : make_cpu_device()),
        stream_(device_->stream("compute")),
        batch_shape_(shape),
        book_(std::make_shared<TraceBook>(kind)),
        tables_(std::make_shared<model::RopeTables>(arch_, kind, shape.row_tokens)) {
    run_.compute = compute;
    run_.accumulation = accumulation;
    run_.train_shapes = run_.eval_shapes = {shape};
    blocks_ = make_blocks(arch_, spec_,
                          {.compute = compute,
                           .device = kind,
                           .deterministic = true,
                           .positions = shape.row_tokens,
                           .traces = book_,
                           .tables = tables_});
    profile_ = record_memory(spec_, blocks_, *book_, run_, *device_, tables_->bytes());
    lay_out();
  }

  const Profile& profile() const { return profile_; }
  const ModelSpec& spec() const { return spec_; }
  TraceBook& book() { return *book_; }

  // From here on calls are replayed.
  void replay() {
    tables_->place(at(tables_at_), *stream_);
    book_->place_library(at(library_at_), profile_.library_workspace);
    book_->set_mode(TraceBook::Mode::kReplay);
  }

  StepBits step(Keep keep) {
    StepBits bits;
    poison(gradients_at_, gradient_bytes_);
    for (Id m = 0; m < static_cast<Id>(run_.accumulation); ++m) {
      make_batch(static_cast<unsigned>(m) + 1);
      micro_batch(m, keep);
      append(bits.losses, loss_at_, 8);
    }
    append(bits.gradients, gradients_at_, gradient_bytes_);
    make_batch(99);
    evaluate();
    append(bits.evaluation, loss_at_, 8);
    return bits;
  }

  // Every micro-batch adds, the first one too.
  void add_to_gradients() { overwrites_ = false; }

  CallMemory memory(Id block, Pass pass, bool light = false, bool training = true) const {
    return profile_.find({spec_.blocks[static_cast<std::size_t>(block)].trace, pass, light, batch_shape_, training});
  }

 private:
  Bytes take(Bytes bytes) {
    const Bytes offset = total_;
    total_ += round_up(bytes, kAlignment);
    return offset;
  }
  std::byte* at(Bytes offset) const { return arena_ + offset; }

  void lay_out() {
    const auto blocks = static_cast<Id>(spec_.blocks.size());
    activation_bytes_ = round_up(batch_shape_.tokens() * spec_.hidden * size_of(run_.compute), kAlignment);
    for (Id id = 0; id < static_cast<Id>(spec_.parameters.size()); ++id) {
      weight_at_.push_back(total_);
      take(round_up(spec_.parameters[static_cast<std::size_t>(id)].elements(), 256) * size_of(run_.compute));
    }
    gradients_at_ = total_;
    for (Id id = 0; id < static_cast<Id>(spec_.parameters.size()); ++id) {
      wide_.push_back(accumulates(spec_, run_, id));
      gradient_at_.push_back(total_);
      take(round_up(spec_.parameters[static_cast<std::size_t>(id)].elements(), 256) *
           size_of(wide_.back() ? DType::kF32 : run_.compute));
    }
    gradient_bytes_ = total_ - gradients_at_;
    for (const Profile::Call& call : profile_.calls)
      workspace_bytes_ = std::max(workspace_bytes_, call.memory.workspace);
    for (Id block = 0; block < blocks; ++block) {
      input_at_.push_back(take(activation_bytes_));
      const bool layer = spec_.blocks[static_cast<std::size_t>(block)].kind == BlockKind::kLayer;
      saved_bytes_.push_back(layer ? memory(block, Pass::kForwardKeep).saved : 0);
      saved_at_.push_back(take(saved_bytes_.back()));
    }
    for (Bytes& each : gradient_in_out_) each = take(activation_bytes_);
    workspace_at_ = take(workspace_bytes_);
    tables_at_ = take(profile_.tables);
    library_at_ = take(profile_.library_workspace);
    batch_at_ = take(batch_layout(batch_shape_).bytes);
    loss_at_ = take(8);
    arena_ = device_->arena(Tier::kDevice, total_);
    nan_.assign(static_cast<std::size_t>(std::max(total_, Bytes{1})), std::byte{0xff});
    poison(0, total_);
    fill_weights();
  }

  void fill_weights() {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 0.1F);
    for (std::size_t id = 0; id < spec_.parameters.size(); ++id) {
      const std::int64_t elements = spec_.parameters[id].elements();
      std::vector<float> values(static_cast<std::size_t>(elements));
      for (float& value : values) value = normal(random) + (spec_.parameters[id].fill == Fill::kOnes ? 1.0F : 0.0F);
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      const at::Tensor made =
          view(bytes, {elements}, DType::kF32, DeviceKind::kCpu).to(scalar_type(run_.compute)).contiguous();
      stream_->copy(at(weight_at_[id]), static_cast<const std::byte*>(made.const_data_ptr()),
                    static_cast<Bytes>(made.nbytes()));
      stream_->synchronize();
    }
  }

  // Samples of random lengths when packed, some of the last ones empty.
  void make_batch(unsigned seed) {
    std::mt19937 random(seed);
    const BatchLayout layout = batch_layout(batch_shape_);
    host_batch_.assign(static_cast<std::size_t>(layout.bytes), std::byte{0});
    const auto array = [&](Bytes offset) { return reinterpret_cast<std::int32_t*>(host_batch_.data() + offset); };
    const std::int64_t tokens = batch_shape_.tokens();
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < batch_shape_.rows; ++row) starts.push_back(row * batch_shape_.row_tokens);
    if (batch_shape_.packed) {
      const auto more = static_cast<std::int64_t>(random() % (batch_shape_.max_samples - batch_shape_.rows + 1));
      for (std::int64_t i = 0; i < more; ++i) starts.push_back(static_cast<std::int64_t>(random() % tokens));
    }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    for (std::int64_t i = 0; i <= batch_shape_.max_samples; ++i) {
      const auto k = static_cast<std::size_t>(i);
      array(layout.sample_starts)[i] = static_cast<std::int32_t>(k < starts.size() ? starts[k] : tokens);
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto next = std::upper_bound(starts.begin(), starts.end(), t);
      array(layout.positions)[t] = static_cast<std::int32_t>(t - *(next - 1));
      array(layout.tokens)[t] = static_cast<std::int32_t>(random() % spec_.vocabulary);
      array(layout.labels)[t] =
          random() % 4 == 0 ? kIgnoredLabel : static_cast<std::int32_t>(random() % spec_.vocabulary);
    }
    stream_->copy(at(batch_at_), host_batch_.data(), layout.bytes);
    stream_->synchronize();
  }

  void poison(Bytes offset, Bytes bytes) {
    if (bytes == 0) return;
    stream_->copy(at(offset), nan_.data(), bytes);
    stream_->synchronize();
  }

  void append(std::vector<std::byte>& to, Bytes offset, Bytes bytes) {
    const std::size_t before = to.size();
    to.resize(before + static_cast<std::size_t>(bytes));
    stream_->copy(to.data() + before, at(offset), bytes);
    stream_->synchronize();
  }

  Context context(bool training) const {
    Context context;
    context.shape = batch_shape_;
    context.batch = at(batch_at_);
    context.host_batch = host_batch_.data();
    context.dropout_key = 5;
    context.loss_scale = 0.01;
    context.training = training;
    return context;
  }

  std::vector<ParameterBytes> bind(Id block, bool first, bool training) const {
    std::vector<ParameterBytes> bound;
    for (const Id id : spec_.blocks[static_cast<std::size_t>(block)].parameters) {
      const auto k = static_cast<std::size_t>(id);
      const auto& head = spec_.blocks.back().parameters;
      const bool head_first = block == 0 && std::find(head.begin(), head.end(), id) != head.end();
      bound.push_back({at(weight_at_[k]), training ? at(gradient_at_[k]) : nullptr,
                       wide_[k] ? DType::kF32 : run_.compute, first && !head_first});
    }
    return bound;
  }

  // One call on poisoned ground.
  std::unique_ptr<SavedGraph> call(Id block, Invocation what, const Context& context, bool first, bool value = true,
                                   std::unique_ptr<SavedGraph> graph = nullptr) {
    const auto k = static_cast<std::size_t>(block);
    const bool head = block + 1 == static_cast<Id>(blocks_.size());
    const auto bound = bind(block, first, context.training);
    BlockCall one;
    one.what = what;
    one.context = &context;
    one.parameters = bound;
    one.stream = stream_.get();
    one.input = block == 0 ? nullptr : at(input_at_[k]);
    one.saved = saved_bytes_[k] > 0 ? at(saved_at_[k]) : nullptr;
    one.workspace = at(workspace_at_);
    poison(workspace_at_, workspace_bytes_);
    if (what.pass == Pass::kForwardKeep) poison(saved_at_[k], saved_bytes_[k]);
    const Bytes output = head ? loss_at_ : input_at_[std::min(k + 1, input_at_.size() - 1)];
    if (what.pass != Pass::kBackward || head) {
      one.output = value ? at(output) : nullptr;
      if (value) poison(output, head ? 8 : activation_bytes_);
    }
    if (what.pass != Pass::kBackward) return blocks_[k]->forward(one);
    one.output_gradient = head ? nullptr : at(gradient_in_out_[k % 2]);
    one.input_gradient = block == 0 ? nullptr : at(gradient_in_out_[(k + 1) % 2]);
    if (block > 0) poison(gradient_in_out_[(k + 1) % 2], activation_bytes_);
    blocks_[k]->backward(one, std::move(graph));
    return nullptr;
  }

  // To the host and back; in between the bytes are somebody else's.
  void swap_out_and_in(Bytes offset, Bytes bytes) {
    std::vector<std::byte> host;
    append(host, offset, bytes);
    poison(offset, bytes);
    stream_->copy(at(offset), host.data(), bytes);
    stream_->synchronize();
  }

  void micro_batch(Id m, Keep keep) {
    const Context context = this->context(true);
    const bool first = overwrites_ && m == 0, light = keep == Keep::kLight || keep == Keep::kSwapped;
    const auto head = static_cast<Id>(blocks_.size()) - 1;
    std::vector<std::unique_ptr<SavedGraph>> graphs(blocks_.size());
    for (Id block = 0; block < head; ++block) {
      const bool kept = block > 0 && keep != Keep::kRecompute;
      graphs[static_cast<std::size_t>(block)] =
          call(block, {block, m, kept ? Pass::kForwardKeep : Pass::kForward, kept && light}, context, first);
    }
    call(head, {head, m, Pass::kBackward, false}, context, first);
    for (Id block = head; block-- > 0;) {
      const auto k = static_cast<std::size_t>(block);
      if (keep == Keep::kSwapped) {
        swap_out_and_in(saved_at_[k], saved_bytes_[k]);
        swap_out_and_in(input_at_[k], activation_bytes_);
      }
      if (keep == Keep::kRecompute && block > 0) {
        graphs[k] = call(block, {block, m, Pass::kForwardKeep, false}, context, first, /*value=*/false);
      }
      call(block, {block, m, Pass::kBackward, block > 0 && light}, context, first, true, std::move(graphs[k]));
    }
  }

  void evaluate() {
    const Context context = this->context(false);
    for (Id block = 0; block < static_cast<Id>(blocks_.size()); ++block) {
      call(block, {block, 0, Pass::kForward, false}, context, true);
    }
  }

  const Architecture arch_;
  const ModelSpec spec_;
  const DeviceKind kind_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  const BatchShape batch_shape_;
  const std::shared_ptr<TraceBook> book_;
  const std::shared_ptr<model::RopeTables> tables_;
  RunShape run_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Profile profile_;
  std::vector<std::byte> nan_, host_batch_;
  bool overwrites_ = true;
  Bytes total_ = 0, gradients_at_ = 0, gradient_bytes_ = 0, activation_bytes_ = 0, workspace_at_ = 0,
        workspace_bytes_ = 0, tables_at_ = 0, library_at_ = 0, batch_at_ = 0, loss_at_ = 0;
  std::array<Bytes, 2> gradient_in_out_{};
  std::vector<Bytes> weight_at_, gradient_at_, input_at_, saved_at_, saved_bytes_;
  std::vector<bool> wide_;
  std::byte* arena_ = nullptr;
};

inline bool all_finite(const std::vector<std::byte>& doubles) {
  for (std::size_t i = 0; i + 8 <= doubles.size(); i += 8) {
    double value = 0;
    std::memcpy(&value, doubles.data() + i, 8);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// The whole proof for one model, dtype and shape: a step's bits are those of plain calls, whatever is kept, at planned
// addresses alone.
inline void check_replay(const std::string& config, DType compute, DeviceKind kind, const BatchShape& shape,
                         std::int64_t accumulation) {
  Rig rig(config, compute, kind, shape, accumulation);
  for (const Profile::Call& call : rig.profile().calls) {
    EXPECT_LE(static_cast<double>(call.memory.workspace), 1.03 * static_cast<double>(call.memory.workspace_bound))
        << call.key.trace << " pass " << static_cast<int>(call.key.pass) << " light " << call.key.light;
  }
  const StepBits plain = rig.step(Keep::kAll);
  ASSERT_TRUE(all_finite(plain.losses) && all_finite(plain.evaluation));
  for (const Keep keep : {Keep::kLight, Keep::kSwapped, Keep::kRecompute}) {
    EXPECT_EQ(plain, rig.step(keep)) << "plain " << static_cast<int>(keep);
  }
  rig.replay();
  rig.step(Keep::kAll);  // library workspaces move into their region
  reset_allocator_counts();
  for (const Keep keep : {Keep::kAll, Keep::kLight, Keep::kSwapped, Keep::kRecompute}) {
    EXPECT_EQ(plain, rig.step(keep)) << "replayed " << static_cast<int>(keep);
  }
  EXPECT_EQ(allocator_counts().mismatches, 0);
  EXPECT_EQ(allocator_counts().plain, 0);
  EXPECT_GT(allocator_counts().replayed, 0);
}

}  // namespace protrain::test
