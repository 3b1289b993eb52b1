#include "base/error.h"
#include "optimizer/cuda/launch.h"
#include "optimizer/kernels.h"

namespace protrain {

void cuda::check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  PROTRAIN_CHECK(error == cudaSuccess, "launch of {}: {}", kernel, cudaGetErrorString(error));
}

namespace {

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

class CudaKernels final : public UpdateKernels {
 public:
  void round_gradient(Stream& stream, const float* accumulator, std::uint16_t* gradient, std::int64_t n) override {
    stream.call([&] { cuda::launch_round(native(stream), accumulator, gradient, n); });
  }

  void squared_norm(Stream& stream, const void* gradient, DType type, std::int64_t n, double* scratch,
                    double* result) override {
    PROTRAIN_CHECK(type == DType::kBf16 || type == DType::kF32, "no norm of {}", safetensors_name(type));
    stream.call([&] { cuda::launch_squared_norm(native(stream), gradient, type, n, scratch, result); });
  }

  void finish_norm(Stream& stream, const double* squared_norms, std::int64_t tensors, const double* losses,
                   std::int64_t n_losses, double max_norm, StepControl* control) override {
    stream.call(
        [&] { cuda::launch_finish_norm(native(stream), squared_norms, tensors, losses, n_losses, max_norm, control); });
  }

  void adamw(Stream& stream, const AdamWStep& step, const StepControl* control, DType compute,
             const StateBytes& state) override {
    PROTRAIN_CHECK(compute == DType::kBf16 || compute == DType::kF32, "no update of {}", safetensors_name(compute));
    stream.call([&] { cuda::launch_adamw(native(stream), step, control, compute, state); });
  }
};

}  // namespace

std::unique_ptr<UpdateKernels> make_cuda_kernels() { return std::make_unique<CudaKernels>(); }

}  // namespace protrain
