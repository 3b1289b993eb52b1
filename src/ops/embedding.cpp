#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

// index_add_ over rows adds them one after the other, in token order.
void add_rows_cpu(const Parameter& table, const at::Tensor& ids, const at::Tensor& dy) {
  at::Tensor gradient = table.gradient;
  if (gradient.scalar_type() == at::kFloat) {
    if (table.first) gradient.zero_();
    gradient.index_add_(0, ids, dy.to(at::kFloat));
    return;
  }
  const at::Tensor sum = at::zeros(gradient.sizes(), gradient.options().dtype(at::kFloat));
  sum.index_add_(0, ids, dy.to(at::kFloat));
  if (table.first) {
    gradient.copy_(sum);
  } else {
    gradient.add_(sum);
  }
}

void add_rows_cuda(const Parameter& table, const at::Tensor& ids, const at::Tensor& dy) {
  at::Tensor gradient = table.gradient;
  if (table.first) gradient.zero_();
  const auto [sorted, order] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const std::int64_t rows = dy.size(0), columns = dy.size(1);
  const at::Tensor partials = at::empty({cuda::embedding_partial_rows(rows), columns}, dy.options().dtype(at::kFloat));
  cuda::embedding_backward(element_of(dy), sorted.const_data_ptr<std::int32_t>(), order.const_data_ptr<std::int64_t>(),
                           dy.const_data_ptr(), rows, columns, element_of(gradient), gradient.mutable_data_ptr(),
                           table.first, partials.mutable_data_ptr<float>(), launch_stream());
}

struct EmbeddingBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::embedding"; }

  variable_list apply(variable_list&& gradients) override {
    const BelowAutograd guard;
    if (gradients[0].defined() && table.gradient.defined()) {
      const at::Tensor dy = gradients[0].contiguous();
      if (dy.is_cuda()) {
        add_rows_cuda(table, ids, dy);
      } else {
        add_rows_cpu(table, ids, dy);
      }
    }
    return {task_should_compute_output(0) ? at::zeros_like(anchor) : at::Tensor()};
  }

  void release_variables() override { ids.reset(); }

  at::Tensor ids, anchor;
  Parameter table;
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const Parameter& table, const at::Tensor& anchor) {
  PROTRAIN_CHECK(ids.dim() == 1 && ids.is_contiguous() && ids.scalar_type() == at::kInt, "ids are int32 [T]");
  PROTRAIN_CHECK(table.weight.dim() == 2 && table.weight.is_contiguous(), "a table is a contiguous matrix");
  at::Tensor y;
  {
    const BelowAutograd guard;
    if (ids.is_cuda()) {
      y = at::empty({ids.size(0), table.weight.size(1)}, table.weight.options());
      cuda::gather_rows(element_of(y), ids.const_data_ptr<std::int32_t>(), table.weight.const_data_ptr(),
                        y.mutable_data_ptr(), y.size(0), y.size(1), launch_stream());
    } else {
      y = at::index_select(table.weight, 0, ids);
    }
  }
  if (records(anchor)) {
    auto node = make_node<EmbeddingBackward>(anchor);
    node->ids = detached(ids);
    node->anchor = detached(anchor);
    node->table = table;
    hang(y, node);
  }
  return y;
}

}  // namespace protrain::ops
