#include "ops/attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "base/error.h"
#include "tensor/replay.h"

namespace protrain::ops {
namespace {

struct Heads {
  at::Tensor q, k, v;
};

// Views [T, heads, head_dim] of tokens [first, last) of qkv.
Heads split(const at::Tensor& qkv, const HeadShape& shape, std::int64_t first, std::int64_t last) {
  const std::int64_t all = shape.heads + 2 * shape.kv_heads;
  const at::Tensor heads = qkv.narrow(0, first, last - first).view({last - first, all, shape.head_dim});
  return {heads.narrow(1, 0, shape.heads), heads.narrow(1, shape.heads, shape.kv_heads),
          heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads)};
}

// [batch, heads, tokens, head_dim] of [batch x tokens, heads, head_dim], a view.
at::Tensor heads_first(const at::Tensor& x, std::int64_t batch) {
  return x.unflatten(0, {batch, x.size(0) / batch}).transpose(1, 2);
}

// And back; a copy only when a back end chose another memory order.
at::Tensor tokens_first(const at::Tensor& x) { return x.transpose(1, 2).contiguous().flatten(0, 1); }

// Every kv head once for each of its query heads: [batch, heads, tokens, head_dim].
at::Tensor expand_groups(const at::Tensor& x, std::int64_t groups) {
  if (groups == 1) return x;
  return x.unsqueeze(2).expand({x.size(0), x.size(1), groups, x.size(2), x.size(3)}).flatten(1, 2);
}

// [batch, heads, tokens, head_dim] -> [batch x tokens, kv_heads, head_dim], summed over the query heads of each kv
// head.
at::Tensor sum_groups(const at::Tensor& x, std::int64_t groups) {
  if (groups == 1) return tokens_first(x);
  const at::Tensor sum = x.unflatten(1, {x.size(1) / groups, groups}).sum(at::IntArrayRef{2}, false, at::kFloat);
  return tokens_first(sum.to(x.scalar_type()));
}

// ---- CPU: sample by sample when packed, else all rows at once
// -------------------------------------------------------------

template <typename Each>
void for_each_piece(const AttentionPlan& plan, const Each& each) {
  if (!plan.packed) {
    each(std::int64_t{0}, plan.rows * plan.row_tokens, plan.rows);
    return;
  }
  for (std::size_t i = 0; i + 1 < plan.host_starts.size(); ++i) {
    each(plan.host_starts[i], plan.host_starts[i + 1], std::int64_t{1});
  }
}

Attended attend_cpu(const at::Tensor& qkv, const AttentionPlan& plan) {
  const std::int64_t tokens = qkv.size(0), groups = plan.shape.heads / plan.shape.kv_heads;
  Attended result;
  if (plan.packed) {
    result.out = at::empty({tokens, plan.shape.heads, plan.shape.head_dim}, qkv.options());
    result.log_sum_exp = at::empty({tokens, plan.shape.heads}, qkv.options().dtype(at::kFloat));
  }
  const ScratchScope scratch(plan.packed ? packed_scratch_bytes(plan, qkv, false) : 0);
  for_each_piece(plan, [&](std::int64_t first, std::int64_t last, std::int64_t batch) {
    const Heads heads = split(qkv, plan.shape, first, last);
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(heads.q, batch), expand_groups(heads_first(heads.k, batch), groups),
        expand_groups(heads_first(heads.v, batch), groups), 0.0, true, std::nullopt, plan.scale);
    if (plan.packed) {
      result.out.narrow(0, first, last - first).copy_(tokens_first(out));
      result.log_sum_exp.narrow(0, first, last - first).copy_(lse.squeeze(0).t());
    } else {
      result.out = tokens_first(out);
      result.log_sum_exp = lse.transpose(1, 2).contiguous().flatten(0, 1);
    }
  });
  result.out = result.out.flatten(1, 2);
  return result;
}

HeadGradients attend_cpu_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended& saved,
                                  const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape;
  const std::int64_t tokens = qkv.size(0), groups = shape.heads / shape.kv_heads;
  HeadGradients result;
  if (plan.packed) {
    result.q = at::empty({tokens, shape.heads, shape.head_dim}, qkv.options());
    result.k = at::empty({tokens, shape.kv_heads, shape.head_dim}, qkv.options());
    result.v = at::empty({tokens, shape.kv_heads, shape.head_dim}, qkv.options());
  }
  const ScratchScope scratch(plan.packed ? packed_scratch_bytes(plan, qkv, true) : 0);
  for_each_piece(plan, [&](std::int64_t first, std::int64_t last, std::int64_t batch) {
    const Heads heads = split(qkv, shape, first, last);
    const auto piece = [&](const at::Tensor& x) {
      return heads_first(x.narrow(0, first, last - first).unflatten(1, {shape.heads, shape.head_dim}), batch);
    };
    const at::Tensor lse =
        saved.log_sum_exp.narrow(0, first, last - first).unflatten(0, {batch, (last - first) / batch}).transpose(1, 2);
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        piece(gradient), heads_first(heads.q, batch), expand_groups(heads_first(heads.k, batch), groups),
        expand_groups(heads_first(heads.v, batch), groups), piece(saved.out), lse, 0.0, true, std::nullopt, plan.scale);
    if (plan.packed) {
      result.q.narrow(0, first, last - first).copy_(tokens_first(dq));
      result.k.narrow(0, first, last - first).copy_(sum_groups(dk, groups));
      result.v.narrow(0, first, last - first).copy_(sum_groups(dv, groups));
    } else {
      result = {tokens_first(dq), sum_groups(dk, groups), sum_groups(dv, groups)};
    }
  });
  return result;
}

// ---- CUDA
// ----------------------------------------------------------------------------------------------------------------

Attended attend_cudnn(const at::Tensor& qkv, const AttentionPlan& plan) {
  const Heads heads = split(qkv, plan.shape, 0, qkv.size(0));
  auto result = at::_scaled_dot_product_cudnn_attention(
      heads_first(heads.q, plan.rows), heads_first(heads.k, plan.rows), heads_first(heads.v, plan.rows), std::nullopt,
      true, 0.0, true, false, plan.scale);
  return {.out = tokens_first(std::get<0>(result)).flatten(1, 2),
          .log_sum_exp = std::get<1>(result),
          .seed = std::get<6>(result),
          .offset = std::get<7>(result)};
}

HeadGradients attend_cudnn_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended& saved,
                                    const AttentionPlan& plan) {
  const Heads heads = split(qkv, plan.shape, 0, qkv.size(0));
  const auto dense = [&](const at::Tensor& x) {
    return heads_first(x.unflatten(1, {plan.shape.heads, plan.shape.head_dim}), plan.rows);
  };
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      dense(gradient), heads_first(heads.q, plan.rows), heads_first(heads.k, plan.rows),
      heads_first(heads.v, plan.rows), dense(saved.out), saved.log_sum_exp, saved.seed, saved.offset, at::Tensor(),
      at::Tensor(), at::Tensor(), plan.row_tokens, plan.row_tokens, 0.0, true, plan.scale);
  return {tokens_first(dq), tokens_first(dk), tokens_first(dv)};
}

// Flash takes [T, heads, head_dim] with offsets when packed, else [rows, tokens, heads, head_dim].
at::Tensor flash_shape(const at::Tensor& x, const AttentionPlan& plan) {
  return plan.packed ? x : x.unflatten(0, {plan.rows, plan.row_tokens});
}

struct FlashWindow {
  std::optional<std::int64_t> left, right;
};
FlashWindow flash_window(const AttentionPlan& plan) {
  if (plan.window == 0) return {};
  return {plan.window - 1, 0};
}

Attended attend_flash(const at::Tensor& qkv, const AttentionPlan& plan) {
  const Heads heads = split(qkv, plan.shape, 0, qkv.size(0));
  const std::optional<at::Tensor> starts = plan.packed ? std::optional(plan.sample_starts) : std::nullopt;
  const FlashWindow window = flash_window(plan);
  auto result = at::_flash_attention_forward(flash_shape(heads.q, plan), flash_shape(heads.k, plan),
                                             flash_shape(heads.v, plan), starts, starts, plan.row_tokens,
                                             plan.row_tokens, 0.0, true, false, plan.scale, window.left, window.right);
  return {.out = std::get<0>(result).contiguous().view({qkv.size(0), plan.shape.heads * plan.shape.head_dim}),
          .log_sum_exp = std::get<1>(result),
          .seed = std::get<2>(result),
          .offset = std::get<3>(result)};
}

HeadGradients attend_flash_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended& saved,
                                    const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape;
  const Heads heads = split(qkv, shape, 0, qkv.size(0));
  const auto dense = [&](const at::Tensor& x) {
    return flash_shape(x.unflatten(1, {shape.heads, shape.head_dim}), plan);
  };
  const at::Tensor starts = plan.packed ? plan.sample_starts : at::Tensor();
  const FlashWindow window = flash_window(plan);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      dense(gradient), flash_shape(heads.q, plan), flash_shape(heads.k, plan), flash_shape(heads.v, plan),
      dense(saved.out), saved.log_sum_exp.contiguous(), starts, starts, plan.row_tokens, plan.row_tokens, 0.0, true,
      saved.seed, saved.offset, plan.scale, window.left, window.right);
  const auto flat = [&](const at::Tensor& x, std::int64_t n) {
    return x.contiguous().view({qkv.size(0), n, shape.head_dim});
  };
  return {flat(dq, shape.heads), flat(dk, shape.kv_heads), flat(dv, shape.kv_heads)};
}

}  // namespace

AttentionBackend choose_backend(const at::Tensor& qkv, const HeadShape& shape, const AttentionBatch& batch) {
  const bool windowed = batch.window > 0 && batch.window < batch.row_tokens;
  if (!qkv.is_cuda()) return windowed ? AttentionBackend::kMath : AttentionBackend::kCpuFlash;
  if (qkv.scalar_type() != at::kBFloat16 || shape.head_dim % 8 != 0 || shape.head_dim > 256) {
    return AttentionBackend::kMath;
  }
  // cuDNN's backward takes heads of 128 at most, and refuses some short sequences.
  constexpr std::int64_t kCudnnHeadDim = 128, kCudnnTokens = 64;
  const bool cudnn = !batch.packed && !windowed && !batch.deterministic && shape.head_dim <= kCudnnHeadDim &&
                     batch.row_tokens >= kCudnnTokens;
  return cudnn ? AttentionBackend::kCudnn : AttentionBackend::kFlash;
}

Attended attend(const at::Tensor& qkv, const AttentionPlan& plan) {
  switch (plan.backend) {
    case AttentionBackend::kCpuFlash: return attend_cpu(qkv, plan);
    case AttentionBackend::kMath: return attend_math(qkv, plan);
    case AttentionBackend::kCudnn: return attend_cudnn(qkv, plan);
    case AttentionBackend::kFlash: return attend_flash(qkv, plan);
  }
  PROTRAIN_CHECK(false, "attention back end {}", static_cast<int>(plan.backend));
  return {};
}

HeadGradients attend_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended& saved,
                              const AttentionPlan& plan) {
  switch (plan.backend) {
    case AttentionBackend::kCpuFlash: return attend_cpu_backward(gradient, qkv, saved, plan);
    case AttentionBackend::kMath: return attend_math_backward(gradient, qkv, saved, plan);
    case AttentionBackend::kCudnn: return attend_cudnn_backward(gradient, qkv, saved, plan);
    case AttentionBackend::kFlash: return attend_flash_backward(gradient, qkv, saved, plan);
  }
  PROTRAIN_CHECK(false, "attention back end {}", static_cast<int>(plan.backend));
  return {};
}

}  // namespace protrain::ops
