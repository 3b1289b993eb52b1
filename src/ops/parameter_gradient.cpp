#include "ops/parameter_gradient.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "base/error.h"
#include "ops/kernels.h"
#include "ops/tensors.h"

namespace protrain::ops {

void add_product(const Parameter& parameter, const at::Tensor& a, const at::Tensor& b) {
  if (!parameter.gradient.defined()) return;
  at::Tensor gradient = parameter.gradient;
  PROTRAIN_CHECK(gradient.size(0) == a.size(0) && gradient.size(1) == b.size(1),
                 "gradient [{}, {}] of a [{}, {}] product", gradient.size(0), gradient.size(1), a.size(0), b.size(1));
  if (gradient.scalar_type() == a.scalar_type()) {
    if (parameter.first) {
      at::mm_out(gradient, a, b);
    } else {
      at::addmm_out(gradient, gradient, a, b);
    }
    return;
  }
  PROTRAIN_CHECK(gradient.scalar_type() == at::kFloat, "a gradient is of the compute dtype or fp32");
  if (gradient.is_cuda()) {
    if (parameter.first) {
      at::mm_out(gradient, a, b, at::kFloat);
    } else {
      at::addmm_out(gradient, gradient, a, b, at::kFloat);
    }
    return;
  }
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  if (parameter.first) {
    at::mm_out(gradient, wide_a, wide_b);
  } else {
    at::addmm_out(gradient, gradient, wide_a, wide_b);
  }
}

void add_column_sums(const Parameter& parameter, const at::Tensor& x) {
  if (!parameter.gradient.defined()) return;
  if (x.is_cuda()) {
    const std::int64_t rows = x.size(0), columns = x.size(1);
    const at::Tensor partials = at::empty({cuda::column_partial_rows(rows), columns}, x.options().dtype(at::kFloat));
    cuda::column_partials(element_of(x), x.const_data_ptr(), rows, columns, partials.mutable_data_ptr<float>(),
                          launch_stream());
    add_partials(parameter, partials);
    return;
  }
  add_partials(parameter, x);
}

void add_partials(const Parameter& parameter, const at::Tensor& partials) {
  if (!parameter.gradient.defined()) return;
  at::Tensor gradient = parameter.gradient;
  PROTRAIN_CHECK(gradient.numel() == partials.size(1), "gradient of {} elements, {} columns", gradient.numel(),
                 partials.size(1));
  if (partials.is_cuda()) {
    cuda::reduce_partials(partials.const_data_ptr<float>(), partials.size(0), partials.size(1), element_of(gradient),
                          gradient.mutable_data_ptr(), parameter.first, launch_stream());
    return;
  }
  const at::Tensor sum = at::sum(partials, at::IntArrayRef{0}, false, at::kFloat);
  if (parameter.first) {
    gradient.copy_(sum);
  } else {
    gradient.add_(sum);
  }
}

}  // namespace protrain::ops
