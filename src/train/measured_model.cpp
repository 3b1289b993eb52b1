#include "train/measured_model.h"

#include <ATen/ops/zeros.h>
#include <cpuid.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/thread_pool.h"
#include "optimizer/kernels.h"
#include "profile/memory.h"
#include "tensor/tensor.h"

namespace protrain {
namespace {

std::unique_ptr<Device> open_device(const TrainConfig& config, DeviceKind kind) {
  if (kind == DeviceKind::kCuda) return make_cuda_device(0);
  CpuDeviceOptions options;
  options.capacity = config.device_memory_limit.bytes;
  return make_cpu_device(options);
}

std::int64_t longest_row(const RunShape& shape) {
  std::int64_t longest = 0;
  for (const auto* shapes : {&shape.train_shapes, &shape.eval_shapes}) {
    for (const BatchShape& batch : *shapes) longest = std::max(longest, batch.row_tokens);
  }
  return longest;
}

// Loads what the update lanes launch, so that it counts as outside of the arena before the plan is made.
void warm_up_kernels(const Device& device, UpdateKernels& kernels, Stream& stream, DType compute) {
  if (device.kind() != DeviceKind::kCuda) return;
  constexpr std::int64_t kElements = 1024;
  const at::Tensor memory = at::zeros({16 * kElements}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  auto* const base = static_cast<std::byte*>(memory.mutable_data_ptr());
  const auto part = [&](int index) { return base + index * kElements * 4; };
  auto* const control = reinterpret_cast<StepControl*>(part(0));
  auto* const doubles = reinterpret_cast<double*>(part(1));
  stream.call([&] {
    kernels.round_gradient(stream, reinterpret_cast<const float*>(part(2)), reinterpret_cast<std::uint16_t*>(part(3)),
                           kElements);
    kernels.squared_norm(stream, part(3), compute, kElements / 2, doubles, doubles + 64);
    kernels.finish_norm(stream, doubles + 64, 1, doubles + 128, 1, 1, control);
    const StateBytes state = {part(4),
                              reinterpret_cast<std::int16_t*>(part(5)),
                              reinterpret_cast<float*>(part(6)),
                              reinterpret_cast<float*>(part(7)),
                              part(8),
                              kElements};
    kernels.adamw(stream, {}, control, compute, state);
  });
  stream.synchronize();
}

}  // namespace

bool ran_out_of_memory(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return is_out_of_memory(error) || (own != nullptr && own->code() == ExitCode::kDoesNotFit);
}

bool cpu_multiplies_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool amx_bf16 = (d >> 22 & 1) != 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return amx_bf16;
  const bool avx512_bf16 = (a >> 5 & 1) != 0;
  return amx_bf16 || avx512_bf16;
}

DeviceKind device_kind(const TrainConfig& config) {
  const bool cuda = config.device == "cuda" || (config.device == "auto" && cuda_device_count() > 0);
  return cuda ? DeviceKind::kCuda : DeviceKind::kCpu;
}

DType compute_dtype(const TrainConfig& config, DeviceKind kind) {
  if (config.bf16 != Switch::kAuto) return config.bf16 == Switch::kTrue ? DType::kBf16 : DType::kF32;
  return kind == DeviceKind::kCuda || cpu_multiplies_bf16() ? DType::kBf16 : DType::kF32;
}

MeasuredModel measure_model(const TrainConfig& config, const ModelSource& model, const DataSources& data) {
  const DeviceKind kind = device_kind(config);
  MeasuredModel measured;
  measured.device = open_device(config, kind);  // its errors are clearer than the allocator's
  install_allocator(kind);
  measured.compute_threads = config.compute_threads > 0 ? static_cast<int>(config.compute_threads) : allowed_cores();
  // LibTorch's pool waits for ever for a thread that it could not start, so see first that they can be had.
  {
    const ThreadPool probe(2 * measured.compute_threads + 2);
  }
  set_up_torch({.compute_threads = measured.compute_threads, .deterministic = config.deterministic});
  measured.kernels = make_run_kernels(kind, measured.compute_threads);

  measured.shape.compute = compute_dtype(config, kind);
  if (config.bf16 == Switch::kAuto && measured.shape.compute == DType::kF32) {
    log::info("bf16: auto: this CPU has neither AVX512-BF16 nor AMX, so the run computes in float32");
  }
  measured.shape.accumulation = config.gradient_accumulation_steps;
  measured.shape.train_shapes = data.train->shapes();
  if (data.eval) measured.shape.eval_shapes = data.eval->shapes();

  const std::int64_t positions = longest_row(measured.shape);
  measured.tables = std::make_shared<model::RopeTables>(model.architecture, kind, positions);
  measured.traces = std::make_shared<TraceBook>(kind);
  measured.blocks = make_blocks(model.architecture, model.spec,
                                {.compute = measured.shape.compute,
                                 .device = kind,
                                 .deterministic = config.deterministic,
                                 .positions = positions,
                                 .traces = measured.traces,
                                 .tables = measured.tables});
  measured.profile = measure_again(measured, model, measured.shape);
  settle(measured);
  return measured;
}

void settle(MeasuredModel& measured) {
  measured.process_bytes = settled_process_bytes();
  if (const DeviceKind kind = measured.device->kind(); kind == DeviceKind::kCuda) {
    warm_up_kernels(*measured.device, *measured.kernels.device, *measured.device->stream("warm up"),
                    measured.shape.compute);
    release_plain_memory(kind);
    measured.outside_bytes = measured.device->memory().in_use;
  }
}

Profile measure_again(const MeasuredModel& measured, const ModelSource& model, const RunShape& shape) {
  try {
    return record_memory(model.spec, measured.blocks, *measured.traces, shape, *measured.device,
                         measured.tables->bytes());
  } catch (const std::exception& error) {
    if (!ran_out_of_memory(error)) throw;
    release_plain_memory(measured.device->kind());
    const BatchShape& batch = shape.train_shapes.front();
    fail(ExitCode::kDoesNotFit,
         "does not fit: one block of a micro-batch of {} rows of {} tokens ran out of memory when it was tried: a "
         "smaller per_device_train_batch_size (with more gradient_accumulation_steps) or a smaller cutoff_len is "
         "needed ({})",
         batch.rows, batch.row_tokens,
         std::string_view(error.what()).substr(0, std::string_view(error.what()).find('\n')));
  }
}

void change_shape(MeasuredModel& measured, const ModelSource& model, RunShape shape) {
  measured.profile = measure_again(measured, model, shape);
  measured.shape = std::move(shape);
  std::erase_if(measured.rates.calls, [](const Rates::Call& call) { return call.key.training; });
}

}  // namespace protrain
