// The plain training loop that the runtime must equal bit for bit: one buffer a tensor, one thread, no chunks, no
// schedule; norms and updates as their headers say. For tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "optimizer/adamw.h"
#include "optimizer/kernels.h"
#include "plan/plan.h"
#include "runtime/toy_model.h"

namespace protrain::toy {

// Does everything at once, on the calling thread.
class ImmediateStream final : public Stream {
 public:
  void copy(std::byte* to, const std::byte* from, Bytes bytes) override { std::memcpy(to, from, bytes); }
  void zero(std::byte* to, Bytes bytes) override { std::memset(to, 0, bytes); }
  void wait(const Event&) override {}
  Event record() override { return {}; }
  void call(const std::function<void()>& fn) override { fn(); }
  void synchronize() override {}
  void* native() const override { return nullptr; }
};

inline double plain_tree(const std::vector<double>& terms) {
  std::vector<double> lanes(256);
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % 256] += terms[i];
  for (int stride = 128; stride > 0; stride /= 2) {
    for (int lane = 0; lane < stride; ++lane) lanes[lane] += lanes[lane + stride];
  }
  return lanes[0];
}

inline double plain_squared_norm(const std::vector<float>& values) {
  std::vector<double> tiles;
  for (std::size_t begin = 0; begin < values.size(); begin += kNormTile) {
    std::vector<double> squares;
    for (std::size_t i = begin; i < std::min(values.size(), begin + kNormTile); ++i) {
      squares.push_back(static_cast<double>(values[i]) * static_cast<double>(values[i]));
    }
    tiles.push_back(plain_tree(squares));
  }
  return plain_tree(tiles);
}

struct PlainStep {
  std::vector<BatchShape> shapes;  // by micro-batch
  std::vector<const std::byte*> batches;
  std::uint64_t dropout_key = 0;
  std::int64_t supervised_tokens = 1;
  double learning_rate = 0, weight_decay = 0, max_norm = 0;
  std::int64_t update = 1;
};

class PlainLoop {
 public:
  PlainLoop(const ModelSpec& spec, DType compute, std::int64_t accumulation, Order order,
            const std::vector<std::vector<float>>& masters)
      : spec_(spec), compute_(compute), order_(order), blocks_(make_blocks(spec, compute)) {
    for (std::size_t id = 0; id < spec.parameters.size(); ++id) {
      const auto n = static_cast<std::size_t>(spec.parameters[id].elements());
      Tensor tensor;
      tensor.weight.resize(n * static_cast<std::size_t>(size_of(compute)));
      tensor.residual.resize(n);
      tensor.m.resize(n);
      tensor.v.resize(n);
      // A wire gradient where one write is the whole sum in every block but embedding and head.
      tensor.sums = compute == DType::kF32 || accumulation > 1 || touched_by_edge(static_cast<Id>(id));
      tensor.gradient.resize(n * (tensor.sums ? 4 : 2));
      if (compute == DType::kF32) {
        std::memcpy(tensor.weight.data(), masters[id].data(), 4 * n);
      } else {
        split_masters(masters[id].data(), reinterpret_cast<std::uint16_t*>(tensor.weight.data()),
                      tensor.residual.data(), static_cast<std::int64_t>(n));
      }
      tensors_.push_back(std::move(tensor));
    }
  }

  StepControl step(const PlainStep& step, const AdamWOptions& options) {
    const double loss_sum = gradients(step);
    double squares = 0;
    std::vector<std::vector<std::byte>> wires;
    for (Tensor& tensor : tensors_) {
      const auto n = static_cast<std::int64_t>(tensor.m.size());
      std::vector<std::byte> wire(tensor.weight.size());
      std::vector<float> values(tensor.m.size());
      for (std::int64_t i = 0; i < n; ++i) {
        store(wire.data(), compute_, i, load(tensor.gradient.data(), tensor.sums ? DType::kF32 : compute_, i));
        values[i] = load(wire.data(), compute_, i);
      }
      squares += plain_squared_norm(values);
      wires.push_back(std::move(wire));
    }
    StepControl control;
    control.gradient_norm = std::sqrt(squares);
    control.loss_sum = loss_sum;
    control.skip = std::isfinite(control.gradient_norm) && std::isfinite(loss_sum) ? 0 : 1;
    if (control.skip != 0) return control;
    if (step.max_norm > 0) {
      control.clip_scale = static_cast<float>(std::min(1.0, step.max_norm / (control.gradient_norm + 1e-6)));
    }
    for (std::size_t id = 0; id < tensors_.size(); ++id) {
      Tensor& tensor = tensors_[id];
      const double decay = spec_.parameters[id].decay ? step.weight_decay : 0;
      StateBytes state{tensor.weight.data(), nullptr,          tensor.m.data(),
                       tensor.v.data(),      wires[id].data(), static_cast<std::int64_t>(tensor.m.size())};
      const AdamWStep scalars = make_adamw_step(options, step.learning_rate, decay, step.update);
      if (compute_ == DType::kBf16) {
        state.residual = tensor.residual.data();
        adamw_bf16(scalars, control.clip_scale, state, Simd::kScalar);
      } else {
        adamw_f32(scalars, control.clip_scale, state, Simd::kScalar);
      }
    }
    return control;
  }

  double evaluate(const PlainStep& step) {
    Pile pile(*this, step, false);
    const auto count = static_cast<Id>(step.batches.size());
    for (Id m = 0; m < count; ++m) pile.forward(m);
    double sum = 0;
    for (Id m = 0; m < count; ++m) sum += pile.head(m);
    return sum;
  }

  struct Tensor {
    std::vector<std::byte> weight;
    std::vector<std::int16_t> residual;
    std::vector<float> m, v;
    std::vector<std::byte> gradient;
    bool sums = false;
  };
  const Tensor& tensor(Id id) const { return tensors_.at(id); }

 private:
  bool touched_by_edge(Id id) const {
    const auto names = [&](const BlockSpec& block) {
      return std::find(block.parameters.begin(), block.parameters.end(), id) != block.parameters.end();
    };
    return names(spec_.blocks.front()) || names(spec_.blocks.back());
  }

  // The losses' sum, in the order of the micro-batches.
  double gradients(const PlainStep& step) {
    Pile pile(*this, step, true);
    const auto count = static_cast<Id>(step.batches.size());
    const auto blocks = static_cast<Id>(blocks_.size());
    std::vector<double> losses(count);
    if (order_ == Order::kMicroBatch) {
      for (Id m = 0; m < count; ++m) {
        pile.forward(m);
        losses[m] = pile.head(m);
        for (Id block = blocks - 1; block-- > 0;) pile.backward(block, m);
      }
    } else {
      // Backward is the exact reverse. No forward depends on another micro-batch's.
      for (Id m = 0; m < count; ++m) pile.forward(m);
      for (Id m = count; m-- > 0;) losses[m] = pile.head(m);
      for (Id block = blocks - 1; block-- > 0;) {
        for (Id m = count; m-- > 0;) pile.backward(block, m);
      }
    }
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  }

  using Buffer = std::vector<std::byte>;

  // Everything that the micro-batches of one step keep; nothing is used twice.
  class Pile {
   public:
    Pile(PlainLoop& loop, const PlainStep& step, bool training)
        : loop_(loop), step_(step), training_(training), written_(loop.tensors_.size(), false) {
      for (std::size_t m = 0; m < step.batches.size(); ++m) {
        Context context;
        context.shape = step.shapes[m];
        context.batch = context.host_batch = step.batches[m];
        context.dropout_key = step.dropout_key;
        context.loss_scale = training ? 1.0 / static_cast<double>(step.supervised_tokens) : 0;
        context.training = training;
        contexts_.push_back(context);
        const auto bytes = static_cast<std::size_t>(context.shape.tokens() * kHidden * size_of(loop.compute_));
        const std::size_t blocks = loop.blocks_.size();
        inputs_.emplace_back(blocks, Buffer(bytes));
        gradients_.emplace_back(blocks, Buffer(bytes));
        saved_.emplace_back(blocks);
        graphs_.emplace_back(blocks);
      }
    }

    void forward(Id m) {
      for (Id block = 0; block < head_block(); ++block) {
        const Pass pass = training_ ? Pass::kForwardKeep : Pass::kForward;
        graphs_[m][block] = run(block, m, pass, inputs_[m][block + 1].data());
      }
    }
    double head(Id m) {
      double loss = 0;
      run(head_block(), m, training_ ? Pass::kBackward : Pass::kForward, reinterpret_cast<std::byte*>(&loss));
      return loss;
    }
    void backward(Id block, Id m) { run(block, m, Pass::kBackward, nullptr); }

   private:
    Id head_block() const { return static_cast<Id>(loop_.blocks_.size()) - 1; }

    std::unique_ptr<SavedGraph> run(Id block, Id m, Pass pass, std::byte* output) {
      Block& about = *loop_.blocks_[block];
      const CallMemory memory = call_memory(about.spec(), pass, false, contexts_[m].shape.tokens());
      if (pass == Pass::kForwardKeep) saved_[m][block].resize(static_cast<std::size_t>(memory.saved));
      Buffer workspace(static_cast<std::size_t>(memory.workspace));
      std::vector<ParameterBytes> bound;
      for (const Id id : about.spec().parameters) {
        Tensor& tensor = loop_.tensors_[id];
        bound.push_back(
            {tensor.weight.data(), tensor.gradient.data(), tensor.sums ? DType::kF32 : loop_.compute_, !written_[id]});
      }
      BlockCall call;
      call.what = {block, m, pass};
      call.context = &contexts_[m];
      call.parameters = bound;
      call.stream = &loop_.stream_;
      call.output = output;
      call.saved = saved_[m][block].data();
      call.workspace = workspace.data();
      if (block > 0) call.input = inputs_[m][block].data();
      if (pass != Pass::kBackward) return about.forward(call);
      if (block > 0) call.input_gradient = gradients_[m][block].data();
      if (block < head_block()) call.output_gradient = gradients_[m][block + 1].data();
      about.backward(call, std::move(graphs_[m][block]));
      for (const Id id : about.spec().parameters) written_[id] = true;
      return nullptr;
    }

    PlainLoop& loop_;
    const PlainStep& step_;
    const bool training_;
    std::vector<bool> written_;  // by parameter: this step has a gradient of it
    std::vector<Context> contexts_;
    std::vector<std::vector<Buffer>> inputs_, gradients_, saved_;  // by micro-batch, block
    std::vector<std::vector<std::unique_ptr<SavedGraph>>> graphs_;
  };

  const ModelSpec& spec_;
  const DType compute_;
  const Order order_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Tensor> tensors_;
  ImmediateStream stream_;
};

}  // namespace protrain::toy
