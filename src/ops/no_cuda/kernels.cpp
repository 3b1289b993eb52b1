// A build without CUDA code: no tensor is on a CUDA device, so nothing here is reached.
#include "ops/kernels.h"
#include "base/error.h"

namespace protrain::ops::cuda {
namespace {

[[noreturn]] void absent() { fail_check(__FILE__, __LINE__, "CUDA kernel", "this build has no CUDA code"); }

}  // namespace

void add_norm(const NormForward&, StreamHandle) { absent(); }
std::int64_t norm_partial_rows(Element, std::int64_t, std::int64_t) { absent(); }
void norm_backward(const NormBackward&, StreamHandle) { absent(); }
void reduce_partials(const float*, std::int64_t, std::int64_t, Element, void*, bool, StreamHandle) { absent(); }
std::int64_t column_partial_rows(std::int64_t) { absent(); }
void column_partials(Element, const void*, std::int64_t, std::int64_t, float*, StreamHandle) { absent(); }
void rotate(Element, const HeadsOf&, const RopeTables&, void*, StreamHandle) { absent(); }
void rotate_back(Element, const HeadsOf&, const RopeTables&, const void*, const void*, const void*, void*,
                 StreamHandle) {
  absent();
}
void qk_norm(Element, const HeadsOf&, const void*, const void*, const void*, float, void*, float*, StreamHandle) {
  absent();
}
std::int64_t qk_norm_partial_rows(const HeadsOf&) { absent(); }
void qk_norm_backward(Element, const HeadsOf&, const void*, const void*, const void*, const void*, const float*, void*,
                      float*, float*, StreamHandle) {
  absent();
}
void gated_activation(Element, Activation, const void*, void*, std::int64_t, std::int64_t, StreamHandle) { absent(); }
void gated_activation_backward(Element, Activation, const void*, const void*, void*, std::int64_t, std::int64_t,
                               StreamHandle) {
  absent();
}
void activation(Element, Activation, const void*, void*, std::int64_t, StreamHandle) { absent(); }
void activation_backward(Element, Activation, const void*, const void*, void*, std::int64_t, StreamHandle) { absent(); }
void dropout(Element, const DropoutMask&, const void*, void*, std::int64_t, std::int64_t, StreamHandle) { absent(); }
void gather_rows(Element, const std::int32_t*, const void*, void*, std::int64_t, std::int64_t, StreamHandle) {
  absent();
}
std::int64_t embedding_partial_rows(std::int64_t) { absent(); }
void embedding_backward(Element, const std::int32_t*, const std::int64_t*, const void*, std::int64_t, std::int64_t,
                        Element, void*, bool, float*, StreamHandle) {
  absent();
}
void cross_entropy(Element, void*, const std::int32_t*, float*, std::int64_t, std::int64_t, std::int64_t, float, bool,
                   StreamHandle) {
  absent();
}
void sum_losses(const float*, std::int64_t, double*, StreamHandle) { absent(); }

}  // namespace protrain::ops::cuda
