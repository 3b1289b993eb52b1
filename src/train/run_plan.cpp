#include "train/run_plan.h"

#include <cpuid.h>

#include <algorithm>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "train/host_memory.h"

namespace protrain {
namespace {

constexpr std::int64_t kHeadTileTokens = 2048;  // more than the head has logits of at a time
// Kept free of estimates: context, library workspaces, rounding of allocations.
constexpr Bytes kReserve = 512 * kMiB;

struct Need {
  Bytes arena = 0;
  Bytes activations = 0;
  Bytes total() const { return arena + activations; }
};

bool is_gated(Family family) { return family != Family::kGpt2 && family != Family::kOpt; }

Plan make_plan(const ModelSpec& spec, Bytes chunk_bytes, Activation activation) {
  Plan plan;
  plan.chunk_bytes = chunk_bytes;
  plan.activation.assign(spec.blocks.size(), activation);
  return plan;
}

Bytes activation_bytes(const Architecture& arch, std::int64_t tokens, DType compute, Activation activation) {
  const std::int64_t kept_layers = activation == Activation::kKeep ? arch.layers : 1;
  return kept_layers * saved_bytes(arch, tokens, compute) + head_bytes(arch, tokens, compute);
}

std::int64_t largest_tokens(const RunShape& shape) {
  std::int64_t tokens = 0;
  for (const auto* shapes : {&shape.train_shapes, &shape.eval_shapes}) {
    for (const BatchShape& batch : *shapes) tokens = std::max(tokens, batch.tokens());
  }
  return tokens;
}

// What would have fitted, in the order in which a user would rather give up something.
std::string nearest_change(const TrainConfig& config, const ModelSource& model, const RunShape& shape, Bytes state,
                           Bytes limit, Activation activation) {
  const std::int64_t tokens = largest_tokens(shape);
  const auto needs = [&](std::int64_t of_tokens, DType dtype, Activation mode) {
    const Bytes inputs = (model.architecture.layers + 3) * of_tokens * model.spec.hidden * size_of(dtype);
    return state + inputs + activation_bytes(model.architecture, of_tokens, dtype, mode);
  };
  if (activation == Activation::kKeep && needs(tokens, shape.compute, Activation::kRecompute) <= limit) {
    return "recompute: true would fit";
  }
  const std::int64_t row = shape.train_shapes.front().row_tokens;
  for (std::int64_t rows = config.per_device_train_batch_size / 2; rows >= 1; rows /= 2) {
    if (needs(rows * row, shape.compute, Activation::kRecompute) <= limit) {
      return fmt::format("per_device_train_batch_size: {} with gradient_accumulation_steps: {} would fit", rows,
                         config.gradient_accumulation_steps * (config.per_device_train_batch_size / rows));
    }
  }
  if (state > limit) {
    return fmt::format("weights, gradients and optimizer state alone need {}: a smaller model or more memory is needed",
                       format_bytes(state));
  }
  return "a smaller cutoff_len would fit";
}

Bytes state_bytes(const Layout& layout) {
  Bytes bytes = 0;
  for (const Layout::Entry& entry : layout.entries) {
    if (entry.region == Region::kState && entry.range.tier == Tier::kDevice) bytes += entry.range.bytes;
  }
  return bytes;
}

}  // namespace

bool cpu_multiplies_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool amx_bf16 = (d >> 22 & 1) != 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return amx_bf16;
  const bool avx512_bf16 = (a >> 5 & 1) != 0;
  return amx_bf16 || avx512_bf16;
}

std::unique_ptr<Device> open_device(const TrainConfig& config) {
  const bool cuda = config.device == "cuda" || (config.device == "auto" && cuda_device_count() > 0);
  if (cuda) return make_cuda_device(0);
  CpuDeviceOptions options;
  options.capacity = config.device_memory_limit.bytes;
  return make_cpu_device(options);
}

DType compute_dtype(const TrainConfig& config, DeviceKind kind) {
  if (config.bf16 != Switch::kAuto) return config.bf16 == Switch::kTrue ? DType::kBf16 : DType::kF32;
  if (kind == DeviceKind::kCuda || cpu_multiplies_bf16()) return DType::kBf16;
  log::info("bf16: auto: this CPU has neither AVX512-BF16 nor AMX, so the run computes in float32");
  return DType::kF32;
}

Bytes saved_bytes(const Architecture& arch, std::int64_t tokens, DType compute) {
  const std::int64_t attention = arch.heads * arch.head_dim;
  const std::int64_t qkv = (arch.heads + 2 * arch.kv_heads) * arch.head_dim;
  const std::int64_t mlp = (is_gated(arch.family) ? 3 : 2) * arch.ffn;
  // Two sums with the residual, two norms, q k v, attention's output, the MLP's inner values; log-sum-exp in fp32.
  const std::int64_t elements = 4 * arch.hidden + qkv * (arch.qk_norm ? 2 : 1) + attention + mlp;
  return tokens * (elements * size_of(compute) + arch.heads * 4);
}

Bytes head_bytes(const Architecture& arch, std::int64_t tokens, DType compute) {
  const std::int64_t tile = std::min(tokens, kHeadTileTokens);
  return tile * arch.vocabulary * (size_of(compute) + 4) + 3 * tokens * arch.hidden * size_of(compute);
}

RunPlan choose_plan(const TrainConfig& config, const ModelSource& model, const DataSources& data,
                    const Device& device) {
  RunPlan run;
  run.compute_threads = config.compute_threads > 0 ? static_cast<int>(config.compute_threads) : allowed_cores();
  run.shape.compute = compute_dtype(config, device.kind());
  run.shape.accumulation = config.gradient_accumulation_steps;
  run.shape.train_shapes = data.train->shapes();
  if (data.eval) run.shape.eval_shapes = data.eval->shapes();
  run.chunks = make_chunks(model.spec, config.chunk_bytes.bytes, run.shape.compute);

  Bytes limit = device.capacity();
  if (config.device_memory_limit.bytes > 0) limit = std::min(limit, config.device_memory_limit.bytes);
  const Bytes host_limit = host_memory_limit();
  const Bytes host_used = host_memory().resident;
  const bool on_host = device.kind() == DeviceKind::kCpu;
  if (on_host) limit = std::min(limit, host_limit - host_used);

  const auto plan_with = [&](Activation activation) {
    run.plan = make_plan(model.spec, config.chunk_bytes.bytes, activation);
    run.layout = layout(model.spec, run.chunks, run.shape, run.plan);
    run.plan.predicted_device_bytes = run.layout.bytes(Tier::kDevice);
    run.activation_bytes =
        activation_bytes(model.architecture, largest_tokens(run.shape), run.shape.compute, activation);
    return Need{run.plan.predicted_device_bytes, run.activation_bytes};
  };
  Activation activation = config.recompute == Switch::kTrue ? Activation::kRecompute : Activation::kKeep;
  Need need = plan_with(activation);
  if (config.recompute == Switch::kAuto && need.total() + kReserve > limit) {
    activation = Activation::kRecompute;
    need = plan_with(activation);
  }

  if (need.total() > limit) {
    fail(ExitCode::kDoesNotFit,
         "does not fit: {} need {} ({} bytes: {} of states and block inputs, about {} of activations), {} ({} bytes) "
         "are "
         "available; {}",
         on_host ? "the device (cpu) and its blocks" : "the device and its blocks", format_bytes(need.total()),
         need.total(), format_bytes(need.arena), format_bytes(need.activations), format_bytes(limit), limit,
         nearest_change(config, model, run.shape, state_bytes(run.layout), limit, activation));
  }
  const Bytes pinned = run.layout.bytes(Tier::kPinned);
  const Bytes host_left = host_limit - host_used - (on_host ? need.total() : 0);
  if (pinned > host_left) {
    fail(ExitCode::kDoesNotFit,
         "does not fit: batches need {} ({} bytes) of pinned host memory, {} ({} bytes) are available",
         format_bytes(pinned), pinned, format_bytes(std::max<Bytes>(0, host_left)), std::max<Bytes>(0, host_left));
  }
  return run;
}

}  // namespace protrain
