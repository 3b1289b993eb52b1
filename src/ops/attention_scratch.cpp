// What one sample's attention allocates at most. ATen's CPU kernels: scores of a tile of queries by keys for each
// thread, whose sizes grow with the sample up to the constants below; bf16 products ask for scratch of their own.
#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/attention.h"

namespace protrain::ops {
namespace {

// Largest tiles of ATen's CPU kernels.
constexpr std::int64_t kCpuTileQueries = 256, kCpuTileKeys = 512;
// Packed copies of keys and values, and padding, for CPUs with bf16 tiles.
constexpr std::int64_t kPackedKeys = 512, kPackedColumns = 64;
// Of small tensors (scalars, masks of a row) and of library scratch that no shape tells.
constexpr Bytes kRest = 64 * kKiB, kLibraryRest = 256 * kKiB;

class Sum {
 public:
  void add(std::int64_t elements, Bytes element_bytes, int count = 1) {
    bytes_ += count * round_up(elements * element_bytes, kAlignment);
  }
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_ = kRest;
};

Bytes cpu_bytes(const AttentionPlan& plan, at::ScalarType type, bool backward) {
  const HeadShape& shape = plan.shape;
  const Bytes element = static_cast<Bytes>(at::elementSize(type)), wide = sizeof(float);
  const bool narrow = type != at::kFloat;
  const std::int64_t tokens = plan.row_tokens, threads = at::get_num_threads();
  const std::int64_t queries = std::min(kCpuTileQueries, tokens), keys = std::min(kCpuTileKeys, tokens);
  const std::int64_t all = tokens * shape.heads * shape.head_dim, kv = tokens * shape.kv_heads * shape.head_dim;
  Sum sum;
  sum.add(all, element, 2);  // k and v for each query head
  if (!backward) {
    sum.add(all, element);                                           // out
    sum.add(tokens * shape.heads, wide);                             // log-sum-exp
    sum.add(threads * queries * (keys + 2 + shape.head_dim), wide);  // scores, their statistics, sums
    if (narrow) {
      sum.add(threads * queries * keys, element);  // rounded scores
      sum.add((tokens + kPackedKeys) * shape.heads * (shape.head_dim + kPackedColumns), element, 2);
      sum.add(threads * queries * (shape.head_dim + kPackedColumns), element);
    }
  } else {
    sum.add(all, element, 3);                    // dq, dk, dv
    sum.add(threads * queries * keys, wide, 2);  // scores and their gradients
    sum.add(queries, wide, 2);                   // row sums
    if (narrow) sum.add(threads * queries * keys, element, 2);
    sum.add(all, wide, 2);  // dk and dv widened, their sums over heads, rounded, in order
    sum.add(kv, wide, 2);
    sum.add(kv, element, 4);
  }
  if (narrow) {
    // The largest of a tile's products, its factors widened.
    sum.add(2 * (queries * keys + (queries + keys) * shape.head_dim), wide);
    return sum.bytes() + kLibraryRest;
  }
  return sum.bytes();
}

Bytes math_bytes(const AttentionPlan& plan, at::ScalarType type, bool cuda, bool backward) {
  const HeadShape& shape = plan.shape;
  const Bytes wide = sizeof(float);
  const std::int64_t queries = std::min(kMathTileQueries, plan.row_tokens);
  const std::int64_t keys = plan.window > 0 ? std::min(plan.row_tokens, queries + plan.window - 1) : plan.row_tokens;
  const std::int64_t q = shape.heads * queries * shape.head_dim, k = shape.kv_heads * keys * shape.head_dim;
  const std::int64_t scores = shape.heads * queries * keys;
  const int copies = type == at::kFloat ? 1 : 2;  // widened, then put in order
  Sum sum;
  sum.add(q, wide, copies);
  sum.add(k, wide, 2 * copies);
  sum.add(scores, wide, 2);       // and probabilities
  sum.add(queries * keys, 1, 3);  // masks
  sum.add(queries, sizeof(std::int64_t), 2);
  sum.add(keys, sizeof(std::int64_t));
  if (!backward) {
    sum.add(q, wide);  // out
  } else {
    sum.add(q, wide, 2 * copies);  // out and its gradient
    sum.add(scores, wide);         // the scores' gradient
    sum.add(q, wide, 2);           // product of out and gradient; dq
    sum.add(shape.heads * queries, wide);
    sum.add(k, wide, 2);  // dk, dv
  }
  return sum.bytes() + (cuda ? kLibraryRest : 0);
}

}  // namespace

Bytes packed_scratch_bytes(const AttentionPlan& plan, const at::Tensor& qkv, bool backward) {
  return plan.backend == AttentionBackend::kMath ? math_bytes(plan, qkv.scalar_type(), qkv.is_cuda(), backward)
                                                 : cpu_bytes(plan, qkv.scalar_type(), backward);
}

}  // namespace protrain::ops
