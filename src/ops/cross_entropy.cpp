#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/parameter_gradient.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

// Bytes of one tile's logits. CUDA: long enough that the weight gradient's fp32 sum, read and written once a tile,
// costs little beside the products. CPU: some last-level caches.
constexpr std::int64_t kCudaTileBytes = 512 * kMiB;
constexpr std::int64_t kCpuTileBytes = 48 * kMiB;
// Rows of a tile are a multiple of this, so that the products' tiles divide evenly.
constexpr std::int64_t kCudaTileRows = 256;
constexpr std::int64_t kCpuTileRows = 16;
// Logits' rows start at multiples of 16 bytes on CUDA: an odd vocabulary would put cuBLAS on a path several times
// slower.
constexpr std::int64_t kRowElements = 8;

std::int64_t tile_rows(std::int64_t row_bytes, bool cuda) {
  const std::int64_t unit = cuda ? kCudaTileRows : kCpuTileRows;
  const std::int64_t rows = (cuda ? kCudaTileBytes : kCpuTileBytes) / row_bytes;
  return std::max(unit, rows / unit * unit);
}

// Losses of a tile; the logits become their gradients when asked.
at::Tensor loss_cpu(at::Tensor& logits, const at::Tensor& labels, const LossOptions& options) {
  const at::Tensor log_p = at::log_softmax(logits, 1, at::kFloat);
  const at::Tensor none = labels.lt(0).unsqueeze(1);
  const at::Tensor index = labels.clamp_min(0).to(at::kLong).unsqueeze(1);
  const at::Tensor losses = log_p.gather(1, index).neg_().masked_fill_(none, 0);
  if (options.gradients) {
    const at::Tensor scale = none.logical_not().to(at::kFloat).mul_(options.loss_scale);
    const bool narrow = logits.scalar_type() != at::kFloat;
    at::Tensor gradient = narrow ? at::empty_like(log_p) : logits;
    at::exp_out(gradient, log_p);
    gradient.mul_(scale).scatter_add_(1, index, scale.neg());
    if (narrow) logits.copy_(gradient);
  }
  return losses.squeeze(1);
}

}  // namespace

Loss cross_entropy(const at::Tensor& x, const Parameter& weight, const at::Tensor& labels, const LossOptions& options) {
  const std::int64_t tokens = x.size(0), width = x.size(1), vocabulary = weight.weight.size(0);
  PROTRAIN_CHECK(x.is_contiguous() && weight.weight.size(1) == width, "x of width {}, weight of {}", width,
                 weight.weight.size(1));
  PROTRAIN_CHECK(labels.dim() == 1 && labels.size(0) == tokens && labels.scalar_type() == at::kInt,
                 "labels are int32 [T]");
  const BelowAutograd guard;
  const bool cuda = x.is_cuda();
  const at::Tensor input = detached(x);
  const std::int64_t stride = cuda ? round_up(vocabulary, kRowElements) : vocabulary;
  const std::int64_t rows = std::min(tokens, tile_rows(stride * static_cast<std::int64_t>(x.element_size()), cuda));
  const at::Tensor memory = at::empty({rows, stride}, x.options());
  const at::Tensor losses = at::empty({tokens}, x.options().dtype(at::kFloat));
  Loss loss;
  if (options.gradients) loss.input_gradient = at::empty({tokens, width}, x.options());
  Parameter sum = weight;
  for (std::int64_t first = 0; first < tokens; first += rows) {
    const std::int64_t count = std::min(rows, tokens - first);
    const at::Tensor tile = input.narrow(0, first, count), tile_labels = labels.narrow(0, first, count);
    at::Tensor logits = memory.narrow(0, 0, count).narrow(1, 0, vocabulary);
    at::mm_out(logits, tile, weight.weight.t());
    if (cuda) {
      cuda::cross_entropy(element_of(x), logits.mutable_data_ptr(), tile_labels.const_data_ptr<std::int32_t>(),
                          losses.mutable_data_ptr<float>() + first, count, vocabulary, stride,
                          static_cast<float>(options.loss_scale), options.gradients, launch_stream());
    } else {
      losses.narrow(0, first, count).copy_(loss_cpu(logits, tile_labels, options));
    }
    if (!options.gradients) continue;
    at::Tensor dx = loss.input_gradient.narrow(0, first, count);
    at::mm_out(dx, logits, weight.weight);
    add_product(sum, logits.t(), tile);
    sum.first = false;
  }
  if (cuda) {
    loss.sum = at::empty({1}, x.options().dtype(at::kDouble));
    cuda::sum_losses(losses.const_data_ptr<float>(), tokens, loss.sum.mutable_data_ptr<double>(), launch_stream());
  } else {
    loss.sum = at::sum(losses, at::kDouble).unsqueeze(0);
  }
  return loss;
}

}  // namespace protrain::ops
