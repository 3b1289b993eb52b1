// The pieces of autograd that blocks need: a kept graph and its backward, and where work goes. Private to model/.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>

#include "block/block.h"

namespace protrain::model {

// What a forward with graph leaves for its backward. It holds the result's place in the graph, not its values: those
// have been copied to the next block's input.
class BlockGraph : public SavedGraph {
 public:
  BlockGraph(const at::Tensor& x, const at::Tensor& y);
  // Gradient of x from that of y; the nodes on the way write the parameters' gradients. Once.
  at::Tensor backward(const at::Tensor& y_gradient);

 private:
  at::Tensor x_;
  torch::autograd::Edge y_;
};

// x; rows with ids[t] == id pass no gradient. ids int32 [T].
at::Tensor stop_gradient_of(const at::Tensor& x, const at::Tensor& ids, std::int64_t id);

// Runs `work` on this thread as work of the call's stream, with LibTorch's current stream set to it.
void issue(const BlockCall&, DeviceKind, const std::function<void()>& work);

// Copies the values of `from` to `to`, unless they are there already.
void deliver(const at::Tensor& from, const at::Tensor& to);

}  // namespace protrain::model
