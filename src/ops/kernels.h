// Launchers of the CUDA kernels: raw device pointers, issued to `stream`, no allocation, no synchronisation. Matrices
// are row-major and contiguous; any number of rows and columns. 16-byte accesses when shapes and addresses allow.
// Reductions are fp32 in an order fixed by shape, without atomics. Implemented in cuda/, stubs (InternalError) in
// no_cuda/. Thread-safe.
#pragma once
#include <cstdint>

#include "ops/activation_kind.h"

struct CUstream_st;

namespace protrain::ops::cuda {

using StreamHandle = CUstream_st*;  // cudaStream_t

enum class Element : std::uint8_t { kF32, kBf16 };

// ---- norms
// -------------------------------------------------------------------------------------------------------------
struct NormForward {
  Element element = Element::kF32;
  bool layer = false;  // layer norm (mean, bias), else RMS norm
  const void* x = nullptr;
  const void* residual = nullptr;  // null: sum is x and is not written
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* sum = nullptr;  // x + residual, rounded; what is normed
  void* normed = nullptr;
  float* mean = nullptr;  // [rows], layer norm only
  float* rstd = nullptr;  // [rows]; null: neither is written. The bits of normed depend on those of the sum alone
  std::int64_t rows = 0, columns = 0;
  float epsilon = 0;
};
void add_norm(const NormForward&, StreamHandle stream);

struct NormBackward {
  Element element = Element::kF32;
  bool layer = false;
  const void* normed_gradient = nullptr;
  const void* sum = nullptr;
  const void* weight = nullptr;
  const void* sum_gradient = nullptr;  // null: none came
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* input_gradient = nullptr;    // may be sum
  float* weight_partials = nullptr;  // [norm_partial_rows, columns], for reduce_partials
  float* bias_partials = nullptr;    // likewise, layer norm only
  std::int64_t rows = 0, columns = 0;
};
std::int64_t norm_partial_rows(Element, std::int64_t rows, std::int64_t columns);
void norm_backward(const NormBackward&, StreamHandle stream);

// out[c] (+)= sum over rows of partials[r, c].
void reduce_partials(const float* partials, std::int64_t rows, std::int64_t columns, Element, void* out, bool overwrite,
                     StreamHandle stream);
std::int64_t column_partial_rows(std::int64_t rows);
void column_partials(Element, const void* x, std::int64_t rows, std::int64_t columns, float* partials,
                     StreamHandle stream);

// ---- heads of a projection: qkv [tokens, (heads + 2 kv_heads) x head_dim]
// -----------------------------------------------
struct HeadsOf {
  std::int64_t tokens = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
};
struct RopeTables {
  const float* cos = nullptr;  // [positions, rotary_dim / 2]; null: no rotation
  const float* sin = nullptr;
  const std::int32_t* positions = nullptr;
  int rotary_dim = 0;
};
void rotate(Element, const HeadsOf&, const RopeTables&, void* qkv, StreamHandle stream);
// dqkv = the gradients of q and k (of the rotated ones) rotated back, and of v, side by side. dq [tokens, heads,
// head_dim].
void rotate_back(Element, const HeadsOf&, const RopeTables&, const void* dq, const void* dk, const void* dv, void* dqkv,
                 StreamHandle stream);

void qk_norm(Element, const HeadsOf&, const void* qkv, const void* q_weight, const void* k_weight, float epsilon,
             void* out, float* rstd, StreamHandle stream);  // rstd [tokens, heads + kv_heads]
std::int64_t qk_norm_partial_rows(const HeadsOf&);
void qk_norm_backward(Element, const HeadsOf&, const void* gradient, const void* qkv, const void* q_weight,
                      const void* k_weight, const float* rstd, void* dqkv, float* q_partials, float* k_partials,
                      StreamHandle stream);  // partials [qk_norm_partial_rows, head_dim] each

// ---- elementwise
// -------------------------------------------------------------------------------------------------------
void gated_activation(Element, Activation, const void* gate_up, void* out, std::int64_t rows, std::int64_t columns,
                      StreamHandle stream);
// gate_up_gradient may be gate_up.
void gated_activation_backward(Element, Activation, const void* gate_up, const void* gradient, void* gate_up_gradient,
                               std::int64_t rows, std::int64_t columns, StreamHandle stream);
void activation(Element, Activation, const void* x, void* out, std::int64_t elements, StreamHandle stream);
void activation_backward(Element, Activation, const void* x, const void* gradient, void* dx, std::int64_t elements,
                         StreamHandle stream);  // dx may be x

struct DropoutMask {
  std::uint64_t key = 0;
  std::uint32_t site = 0;
  std::uint32_t threshold = 0;  // an element is kept when its random word is not below
  std::int64_t first_row = 0;
  float scale = 1;
};
void dropout(Element, const DropoutMask&, const void* x, void* out, std::int64_t rows, std::int64_t columns,
             StreamHandle stream);

// ---- embedding
// ---------------------------------------------------------------------------------------------------------
void gather_rows(Element, const std::int32_t* ids, const void* table, void* out, std::int64_t rows,
                 std::int64_t columns, StreamHandle stream);
// gradient[id] (+)= sum of the rows of dy with that id, in the order of `order`: sorted_ids[i] = ids[order[i]],
// ascending, ties in token order. Rows of ids that do not occur are not touched; `overwrite` concerns those that do.
std::int64_t embedding_partial_rows(std::int64_t rows);
void embedding_backward(Element, const std::int32_t* sorted_ids, const std::int64_t* order, const void* dy,
                        std::int64_t rows, std::int64_t columns, Element gradient_element, void* gradient,
                        bool overwrite, float* partials,
                        StreamHandle stream);  // partials [embedding_partial_rows, columns]

// ---- loss
// --------------------------------------------------------------------------------------------------------------
// row_losses[r] = -log softmax(logits[r])[labels[r]], 0 for a label < 0. gradients: the logits are overwritten by
// scale x (softmax - one hot), 0 for rows without a label. row_stride in elements.
void cross_entropy(Element, void* logits, const std::int32_t* labels, float* row_losses, std::int64_t rows,
                   std::int64_t vocabulary, std::int64_t row_stride, float scale, bool gradients, StreamHandle stream);
void sum_losses(const float* row_losses, std::int64_t rows, double* sum, StreamHandle stream);

}  // namespace protrain::ops::cuda
