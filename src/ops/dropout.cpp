#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/philox.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

template <typename T>
void apply_cpu(const cuda::DropoutMask& mask, const at::Tensor& x, at::Tensor& out) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const T* from = x.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t first = 0; first < columns; first += 4) {
      const PhiloxWords words = dropout_words(mask.key, mask.site, mask.first_row + row, first / 4);
      for (std::int64_t i = first; i < std::min(columns, first + 4); ++i) {
        const bool kept = words.word[i - first] >= mask.threshold;
        to[row * columns + i] = static_cast<T>(kept ? static_cast<float>(from[row * columns + i]) * mask.scale : 0.0F);
      }
    }
  }
}

// Forward and backward are the same: the mask is drawn again.
at::Tensor apply_mask(const cuda::DropoutMask& mask, const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  if (x.is_cuda()) {
    cuda::dropout(element_of(x), mask, x.const_data_ptr(), out.mutable_data_ptr(), x.size(0), x.size(1),
                  launch_stream());
  } else if (x.scalar_type() == at::kFloat) {
    apply_cpu<float>(mask, x, out);
  } else {
    PROTRAIN_CHECK(x.scalar_type() == at::kBFloat16, "fp32 or bf16");
    apply_cpu<at::BFloat16>(mask, x, out);
  }
  return out;
}

struct DropoutBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::dropout"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    return {apply_mask(mask, gradients[0].contiguous())};
  }

  cuda::DropoutMask mask;
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double probability, std::uint64_t key, std::uint32_t site,
                   std::int64_t first_row) {
  PROTRAIN_CHECK(probability >= 0 && probability < 1, "dropout of {}", probability);
  PROTRAIN_CHECK(x.dim() == 2 && x.is_contiguous(), "a contiguous matrix");
  if (probability == 0) return x;
  const double threshold = std::floor(probability * 4294967296.0);
  const cuda::DropoutMask mask{.key = key,
                               .site = site,
                               .threshold = static_cast<std::uint32_t>(std::min(threshold, 4294967295.0)),
                               .first_row = first_row,
                               .scale = static_cast<float>(1 / (1 - probability))};
  at::Tensor y;
  {
    const BelowAutograd guard;
    y = apply_mask(mask, x);
  }
  if (records(x)) {
    auto node = make_node<DropoutBackward>(x);
    node->mask = mask;
    hang(y, node);
  }
  return y;
}

}  // namespace protrain::ops
