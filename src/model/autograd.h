// The pieces of autograd that blocks need: a kept graph and its backward, and where work goes. Private to model/.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>

#include "block/block.h"
#include "tensor/trace_book.h"

namespace protrain::model {

// What a forward with graph leaves for its backward. It holds the result's place in the graph, not its values: those
// have been copied to the next block's input.
class BlockGraph : public SavedGraph {
 public:
  // `gradients`: gradient_kinds() of the forward, whose nodes hold on to where gradients go.
  BlockGraph(const at::Tensor& x, const at::Tensor& y, std::string gradients = {});
  // Gradient of x from that of y; the nodes on the way write the parameters' gradients. Once.
  at::Tensor backward(const at::Tensor& y_gradient);
  const std::string& gradients() const { return gradients_; }

 private:
  at::Tensor x_;
  torch::autograd::Edge y_;
  std::string gradients_;
};

// x; rows with ids[t] == id pass no gradient. ids int32 [T].
at::Tensor stop_gradient_of(const at::Tensor& x, const at::Tensor& ids, std::int64_t id);

// The kind of this call for the trace book: of its own pass, or (the embedding, whose pass makes no difference) `pass`.
TraceKey trace_key(const BlockSpec&, const BlockCall&, Pass pass);

// Runs `work` on this thread as work of the call's stream, with LibTorch's current stream set to it and allocations as
// the book says. All tensors of the call live inside `work`.
void issue(const BlockCall&, DeviceKind, TraceBook*, const TraceKey&, const std::function<void(CallScope&)>& work);

// A result of the call: copies the values of `from` to `to`, unless they are there already.
void deliver(CallScope&, const at::Tensor& from, const at::Tensor& to);

}  // namespace protrain::model
