#include "tensor/tensor.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <cstdlib>

#include "base/error.h"

namespace protrain {

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::kF32: return at::kFloat;
    case DType::kBf16: return at::kBFloat16;
    case DType::kF16: return at::kHalf;
    case DType::kF64: return at::kDouble;
    case DType::kI64: return at::kLong;
    case DType::kI32: return at::kInt;
    case DType::kI16: return at::kShort;
    case DType::kU8: return at::kByte;
    case DType::kBool: return at::kBool;
  }
  PROTRAIN_CHECK(false, "dtype {}", static_cast<int>(type));
  return at::kFloat;
}

at::Tensor view(const std::byte* bytes, at::IntArrayRef shape, DType type, DeviceKind kind) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  PROTRAIN_CHECK(bytes != nullptr || elements == 0, "no memory for {} elements", elements);
  const at::Device device = kind == DeviceKind::kCpu ? at::Device(at::kCPU) : tensor_detail::current_cuda_device();
  const auto options = at::TensorOptions().dtype(scalar_type(type)).device(device);
  // Naming the device spares a question to the driver for each view.
  return at::for_blob(const_cast<std::byte*>(bytes), shape).options(options).target_device(device).make_tensor();
}

void set_up_torch(const TorchOptions& options) {
  PROTRAIN_CHECK(options.compute_threads >= 1, "{} compute threads", options.compute_threads);
  at::set_num_threads(options.compute_threads);
  auto& context = at::globalContext();
  // cuBLAS sums in a fixed order only with a workspace of its own for each stream, and LibTorch reads this once.
  if (options.deterministic) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  context.setDeterministicAlgorithms(options.deterministic, false);
  context.setDeterministicCuDNN(options.deterministic);
  context.setBenchmarkCuDNN(false);
  // Would fill every empty tensor: a pass over memory for values that nobody reads.
  context.setDeterministicFillUninitializedMemory(false);
  context.setFloat32MatmulPrecision("highest");
  context.setAllowTF32CuDNN(false);
  // Split-K products of bf16 inputs keep their partial sums in fp32.
  context.setAllowBF16ReductionCuBLAS(false);
}

}  // namespace protrain
