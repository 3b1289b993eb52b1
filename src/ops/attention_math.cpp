// Attention by products and softmax over tiles of queries, each against the keys it can see: memory is that of one
// tile. Layout inside: a sample's heads as [kv_heads, groups x queries, head_dim] against keys [kv_heads, keys,
// head_dim], so that grouped heads need no copies of k and v and their gradients sum inside the products.
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "ops/attention.h"
#include "tensor/replay.h"

namespace protrain::ops {
namespace {

// Queries [first, last) of a sample that starts at token `start`; they see keys [key_first, last).
struct Tile {
  std::int64_t start = 0, first = 0, last = 0, key_first = 0;
  std::int64_t queries() const { return last - first; }
};

template <typename Each>
void for_each_tile(const AttentionPlan& plan, const Each& each) {
  const auto sample = [&](std::int64_t start, std::int64_t end) {
    for (std::int64_t first = start; first < end; first += kMathTileQueries) {
      const std::int64_t sees = plan.window > 0 ? std::max(start, first - plan.window + 1) : start;
      each(Tile{start, first, std::min(end, first + kMathTileQueries), sees});
    }
  };
  if (!plan.packed) {
    for (std::int64_t row = 0; row < plan.rows; ++row) sample(row * plan.row_tokens, (row + 1) * plan.row_tokens);
    return;
  }
  for (std::size_t i = 0; i + 1 < plan.host_starts.size(); ++i) sample(plan.host_starts[i], plan.host_starts[i + 1]);
}

// Heads [first_head, + count) of tokens [first, last) of x [T, heads, head_dim] as fp32 [kv_heads, groups x tokens,
// head_dim].
at::Tensor by_group(const at::Tensor& x, std::int64_t first_head, std::int64_t count, std::int64_t kv_heads,
                    std::int64_t first, std::int64_t last) {
  return x.narrow(0, first, last - first)
      .narrow(1, first_head, count)
      .transpose(0, 1)
      .to(at::kFloat)
      .contiguous()
      .view({kv_heads, count / kv_heads * (last - first), x.size(2)});
}

at::Tensor from_groups(const at::Tensor& x, std::int64_t heads, std::int64_t tokens) {
  return x.view({heads, tokens, x.size(2)}).transpose(0, 1);
}

// fp32 [kv_heads, groups x queries, keys].
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const Tile& tile, const AttentionPlan& plan) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(plan.scale);
  const auto options = scores.options().dtype(at::kLong);
  const at::Tensor query = at::arange(tile.first, tile.last, options).unsqueeze(1);
  const at::Tensor key = at::arange(tile.key_first, tile.last, options).unsqueeze(0);
  at::Tensor hidden = key.gt(query);
  if (plan.window > 0) hidden = hidden.logical_or(key.le(query.sub(plan.window)));
  scores.view({-1, tile.queries(), k.size(1)}).masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return at::softmax(scores, -1);
}

struct TileHeads {
  at::Tensor q, k, v;
};
TileHeads heads_of(const at::Tensor& qkv, const Tile& tile, const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape;
  const at::Tensor all = qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
  return {by_group(all, 0, shape.heads, shape.kv_heads, tile.first, tile.last),
          by_group(all, shape.heads, shape.kv_heads, shape.kv_heads, tile.key_first, tile.last),
          by_group(all, shape.heads + shape.kv_heads, shape.kv_heads, shape.kv_heads, tile.key_first, tile.last)};
}

}  // namespace

Attended attend_math(const at::Tensor& qkv, const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape;
  at::Tensor out = at::empty({qkv.size(0), shape.heads, shape.head_dim}, qkv.options());
  const ScratchScope scratch(plan.packed ? packed_scratch_bytes(plan, qkv, false) : 0);
  for_each_tile(plan, [&](const Tile& tile) {
    const TileHeads heads = heads_of(qkv, tile, plan);
    const at::Tensor result = at::bmm(probabilities(heads.q, heads.k, tile, plan), heads.v);
    out.narrow(0, tile.first, tile.queries()).copy_(from_groups(result, shape.heads, tile.queries()));
  });
  return {.out = out.flatten(1, 2), .log_sum_exp = {}, .seed = {}, .offset = {}};
}

HeadGradients attend_math_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended& saved,
                                   const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape;
  const std::int64_t tokens = qkv.size(0);
  const auto wide = qkv.options().dtype(at::kFloat);
  at::Tensor dq = at::empty({tokens, shape.heads, shape.head_dim}, qkv.options());
  at::Tensor dk = at::zeros({tokens, shape.kv_heads, shape.head_dim}, wide);
  at::Tensor dv = at::zeros({tokens, shape.kv_heads, shape.head_dim}, wide);
  const at::Tensor dout = gradient.view({tokens, shape.heads, shape.head_dim});
  const at::Tensor out = saved.out.view({tokens, shape.heads, shape.head_dim});
  std::optional<ScratchScope> scratch;
  if (plan.packed) scratch.emplace(packed_scratch_bytes(plan, qkv, true));
  for_each_tile(plan, [&](const Tile& tile) {
    const TileHeads heads = heads_of(qkv, tile, plan);
    const std::int64_t keys = tile.last - tile.key_first;
    const at::Tensor d = by_group(dout, 0, shape.heads, shape.kv_heads, tile.first, tile.last);
    const at::Tensor o = by_group(out, 0, shape.heads, shape.kv_heads, tile.first, tile.last);
    const at::Tensor p = probabilities(heads.q, heads.k, tile, plan);
    // dS = P (dP - row sum of dO O), dP = dO V^T.
    at::Tensor ds = at::bmm(d, heads.v.transpose(1, 2));
    ds.sub_(d.mul(o).sum(at::IntArrayRef{-1}, true)).mul_(p).mul_(plan.scale);
    dq.narrow(0, tile.first, tile.queries()).copy_(from_groups(at::bmm(ds, heads.k), shape.heads, tile.queries()));
    dk.narrow(0, tile.key_first, keys).add_(at::bmm(ds.transpose(1, 2), heads.q).transpose(0, 1));
    dv.narrow(0, tile.key_first, keys).add_(at::bmm(p.transpose(1, 2), d).transpose(0, 1));
  });
  scratch.reset();
  return {dq, dk.to(qkv.scalar_type()), dv.to(qkv.scalar_type())};
}

}  // namespace protrain::ops
