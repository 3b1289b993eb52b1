// What every operator's autograd node shares. Internal to ops/.
//
// Note [Nodes]
// An operator computes its result below autograd (BelowAutograd) and then, when a graph is wanted, hangs one Node on
// it. The node keeps plain detached tensors: no double backward, no hooks, but no version checks either, so that rope
// may overwrite a projection in place. Parameters are not inputs of the graph; apply() writes their gradients where
// Parameter says.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "base/error.h"

namespace protrain::ops {

using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;
using torch::autograd::variable_list;

// Whether a graph is to be recorded for an operator of these inputs (undefined ones are allowed).
template <typename... Tensors>
bool records(const Tensors&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

// A node whose backward returns one gradient for each of `inputs`, in order.
template <typename N, typename... Tensors>
std::shared_ptr<N> make_node(const Tensors&... inputs) {
  std::shared_ptr<N> node(new N(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  return node;
}

// `output` becomes the node's next output; its gradient arrives at that index in apply().
inline void hang(at::Tensor& output, const std::shared_ptr<torch::autograd::Node>& node) {
  const auto index = node->add_input_metadata(output);
  torch::autograd::impl::set_gradient_edge(output, {node, index});
}

// Same memory, outside the graph.
inline at::Tensor detached(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach() : tensor; }

}  // namespace protrain::ops
