#include "search/roofline.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "search/roofline_memory.h"

namespace protrain {
namespace {

// Recorded on an H200 (cuBLAS and cuBLASLt, one stream); others take less.
constexpr Bytes kLibraryWorkspace = 66 * kMiB;
// A call of a block is some tens of launches by one host thread.
constexpr double kLeastLayerSeconds = 2e-4, kLeastEdgeSeconds = 4e-5;
constexpr double kCopySeconds = 1e-5, kKernelSeconds = 1e-5, kCpuUpdateSeconds = 3e-5, kBetweenSteps = 5e-3;
// Memory-bound kernels beside products wait for a place on the device, and take little from them.
constexpr double kGpuUpdateUnderCompute = 4, kComputeUnderGpuUpdate = 1.02;
// Attention backward: five products to the forward's two, less well fed.
constexpr double kAttentionBackwardFlops = 2.5, kAttentionBackwardRate = 0.8;
constexpr Bytes kWide = 4;

// Seconds of one call, added up piece by piece: products at the rate of arithmetic or of memory, whichever is slower;
// everything else at that of memory.
class Clock {
 public:
  Clock(const Hardware& hardware, DType compute)
      : hardware_(hardware),
        element_(size_of(compute)),
        flops_(compute == DType::kBf16 ? hardware.bf16_flops : hardware.f32_flops) {}

  // [m, k] x [k, n]; `sum`: the result is added to an fp32 matrix.
  void product(double m, double n, double k, bool sum = false) {
    const double bytes = element_ * (m * k + k * n) + (sum ? 2.0 * kWide : element_) * m * n;
    seconds_ += std::max(2 * m * n * k / flops_, bytes / hardware_.device_bytes);
  }
  void attention(double flops) { seconds_ += flops / std::min(hardware_.attention_flops, flops_); }
  void elements(double count) { bytes(count * element_); }
  void bytes(double count) { seconds_ += count / hardware_.device_bytes; }
  double seconds() const { return seconds_; }

 private:
  const Hardware& hardware_;
  const double element_, flops_;
  double seconds_ = 0;
};

// FLOPs of both products of causal attention in every row. Samples of a pack are not known here: a whole row each, the
// most it can be.
double attention_flops(const LayerWidths& w, const BatchShape& batch) {
  const auto row = static_cast<double>(batch.row_tokens);
  const auto window = static_cast<double>(w.window > 0 ? std::min(w.window, batch.row_tokens) : batch.row_tokens);
  const double pairs = row * window - window * window / 2;
  return 4 * pairs * static_cast<double>(w.q * batch.rows);
}

// `result`: false in a forward whose graph alone is wanted. It leaves the last product out, unless a norm reads that.
double layer_seconds(const Hardware& hardware, const LayerWidths& w, const BatchShape& batch, const RunShape& run,
                     Pass pass, bool light, bool training, bool result = true) {
  Clock clock(hardware, run.compute);
  const auto tokens = static_cast<double>(batch.tokens());
  const auto h = static_cast<double>(w.hidden), q = static_cast<double>(w.q), kv = static_cast<double>(w.kv),
             qkv = static_cast<double>(w.qkv), up = static_cast<double>(w.up), ffn = static_cast<double>(w.ffn);
  const bool dropout = training && w.dropout;
  if (pass != Pass::kBackward) {
    clock.product(tokens, qkv, h);
    clock.product(tokens, h, q);
    clock.product(tokens, up, h);
    const bool last_product = result || !w.norm_before;
    if (last_product) clock.product(tokens, h, ffn);
    clock.attention(attention_flops(w, batch));
    double moved = 6 * h + up + ffn;  // norms, activation
    if (w.rotary) moved += 2 * (q + kv);
    if (w.qk_norm) moved += 2 * qkv;
    if (w.biases && last_product) moved += 2 * h;
    if (dropout) moved += 7 * h;
    clock.elements(tokens * moved);
    return std::max(clock.seconds(), kLeastLayerSeconds);
  }
  const bool sum = run.accumulation > 1 && run.compute == DType::kBf16;
  const auto backward = [&](double in, double out) {
    clock.product(tokens, in, out);
    clock.product(in, out, tokens, sum);
  };
  backward(h, qkv);
  backward(q, h);
  backward(h, up);
  backward(ffn, h);
  clock.attention(attention_flops(w, batch) * kAttentionBackwardFlops / kAttentionBackwardRate);
  double moved = 8 * h + 2 * up + ffn + 2 * qkv;  // norms, activation, rotation
  if (w.qk_norm) moved += 3 * qkv;
  if (w.biases) moved += qkv + up + 2 * h;  // column sums
  if (dropout) moved += 4 * h;
  if (light) moved += 4 * h + (w.relu ? 0 : up + ffn) + (w.qk_norm ? 2 * qkv + 2 * (q + kv) : 0);
  clock.elements(tokens * moved);
  return std::max(clock.seconds(), 2 * kLeastLayerSeconds);
}

double embedding_seconds(const Hardware& hardware, const Architecture& arch, const BatchShape& batch,
                         const RunShape& run, Pass pass) {
  Clock clock(hardware, run.compute);
  const auto tokens = static_cast<double>(batch.tokens()), h = static_cast<double>(arch.hidden);
  const auto width = static_cast<double>(arch.embedding_width);
  clock.elements(tokens * h * (arch.rotary ? 2 : 7));
  if (arch.embedding_width > 0) clock.product(tokens, h, width);
  if (pass == Pass::kBackward) {
    if (arch.embedding_width > 0) {
      clock.product(tokens, width, h);
      clock.product(width, h, tokens);
    }
    clock.bytes(tokens * h * (arch.rotary ? 1 : 2) * 4 * kWide);
    // The first micro-batch empties the sum first.
    clock.bytes(static_cast<double>(arch.vocabulary * kWide) * h / static_cast<double>(run.accumulation));
  }
  return std::max(clock.seconds(), kLeastEdgeSeconds);
}

double head_seconds(const Hardware& hardware, const Architecture& arch, const BatchShape& batch, const RunShape& run,
                    Pass pass) {
  Clock clock(hardware, run.compute);
  const std::int64_t all = batch.tokens();
  const auto tokens = static_cast<double>(all), h = static_cast<double>(arch.hidden),
             vocabulary = static_cast<double>(arch.vocabulary);
  const auto width = static_cast<double>(arch.embedding_width > 0 ? arch.embedding_width : arch.hidden);
  const bool backward = pass == Pass::kBackward;
  if (arch.final_norm) clock.elements(tokens * h * (backward ? 5 : 2));
  if (arch.embedding_width > 0) {
    for (int products = 0; products < (backward ? 3 : 1); ++products) clock.product(tokens, width, h);
  }
  const std::int64_t rows = head_tile_rows(all, arch.vocabulary, size_of(run.compute));
  for (std::int64_t first = 0; first < all; first += rows) {
    const auto count = static_cast<double>(std::min(rows, all - first));
    clock.product(count, vocabulary, width);
    clock.elements(count * vocabulary * (backward ? 3 : 2));
    if (!backward) continue;
    clock.product(count, width, vocabulary);
    clock.product(vocabulary, width, count, true);
  }
  return std::max(clock.seconds(), kLeastEdgeSeconds);
}

class Estimator {
 public:
  Estimator(const Architecture& arch, const ModelSpec& spec, const RunShape& run, const Hardware& hardware)
      : arch_(arch), spec_(spec), run_(run), hardware_(hardware) {}

  StoredProfile estimate() {
    std::set<std::string> seen;
    for (const BlockSpec& block : spec_.blocks) {
      if (seen.insert(block.trace).second) add(block);
    }
    profile_.machine = hardware_.name;
    profile_.compute = run_.compute;
    profile_.outside = hardware_.outside;
    profile_.memory.library_workspace = kLibraryWorkspace;
    profile_.memory.tables = tables();
    add_rates();
    return std::move(profile_);
  }

 private:
  void add(const BlockSpec& block) {
    for (const BatchShape& batch : run_.train_shapes) {
      if (block.kind != BlockKind::kHead) call(block, batch, Pass::kForward, false, true);
      if (block.kind == BlockKind::kEmbedding) call(block, batch, Pass::kForwardKeep, false, true);
      call(block, batch, Pass::kBackward, false, true);
      if (block.kind != BlockKind::kLayer) continue;
      call(block, batch, Pass::kBackward, true, true);
      for (const bool light : {false, true}) call(block, batch, Pass::kForwardKeep, light, true);
    }
    for (const BatchShape& batch : run_.eval_shapes) call(block, batch, Pass::kForward, false, false);
  }

  void call(const BlockSpec& block, const BatchShape& batch, Pass pass, bool light, bool training) {
    const CallKey key = {block.trace, pass, light, batch, training};
    CallMemory memory;
    double seconds = 0, graph_alone = 1;
    switch (block.kind) {
      case BlockKind::kEmbedding:
        memory = estimate_embedding_memory(arch_, batch, run_.compute, pass, training);
        seconds = embedding_seconds(hardware_, arch_, batch, run_, pass);
        break;
      case BlockKind::kLayer: {
        const LayerWidths widths(arch_, block.layer);
        memory = estimate_layer_memory(widths, batch, run_.compute, pass, light, training);
        seconds = layer_seconds(hardware_, widths, batch, run_, pass, light, training);
        if (pass == Pass::kForwardKeep) {
          graph_alone =
              layer_seconds(hardware_, widths, batch, run_, pass, light, training, /*result=*/false) / seconds;
        }
        break;
      }
      case BlockKind::kHead:
        memory = estimate_head_memory(arch_, batch, run_.compute, pass);
        seconds = head_seconds(hardware_, arch_, batch, run_, pass);
        break;
    }
    profile_.memory.calls.push_back({key, memory});
    profile_.rates.calls.push_back({key, seconds, seconds / hardware_.steady_slowdown, graph_alone});
  }

  Bytes tables() const {
    if (!arch_.rotary) return 0;
    std::int64_t longest = 0;
    for (const auto* shapes : {&run_.train_shapes, &run_.eval_shapes}) {
      for (const BatchShape& batch : *shapes) longest = std::max(longest, batch.row_tokens);
    }
    const auto half = static_cast<Bytes>(rope_table(arch_.rope, arch_.head_dim).inverse_frequency.size());
    return 2 * round_up(longest * half * kWide, kAlignment);
  }

  void add_rates() {
    Rates& rates = profile_.rates;
    rates.source = "estimate for " + hardware_.name;
    rates.measured = false;
    rates.h2d = {kCopySeconds, 1 / hardware_.h2d_bytes};
    rates.d2h = {kCopySeconds, 1 / hardware_.d2h_bytes};
    // Weight, residual (of bf16), m and v are read and written, the gradient is read.
    const auto element = static_cast<double>(size_of(run_.compute));
    const double update = 3 * element + (run_.compute == DType::kBf16 ? 4 : 0) + 16;
    rates.cpu_update = {kCpuUpdateSeconds, update / hardware_.host_bytes};
    rates.gpu_update = {kKernelSeconds, update / hardware_.device_bytes};
    rates.norm = {kKernelSeconds, element / hardware_.device_bytes};
    rates.round = {kKernelSeconds, (element + kWide) / hardware_.device_bytes};
    rates.finish_norm = kKernelSeconds;
    rates.between_steps = kBetweenSteps;
    const auto slowdown = [&](Lane of, Lane under) -> double& {
      return rates.slowdown[static_cast<std::size_t>(of)][static_cast<std::size_t>(under)];
    };
    slowdown(Lane::kH2d, Lane::kD2h) = slowdown(Lane::kD2h, Lane::kH2d) = hardware_.duplex;
    // The figure is that of both links together; copies lose as much to an update as it does to both.
    for (const Lane copy : {Lane::kH2d, Lane::kD2h}) {
      slowdown(Lane::kCpuUpdate, copy) = std::sqrt(hardware_.update_under_copies);
      slowdown(copy, Lane::kCpuUpdate) = hardware_.update_under_copies;
    }
    slowdown(Lane::kGpuUpdate, Lane::kCompute) = kGpuUpdateUnderCompute;
    slowdown(Lane::kCompute, Lane::kGpuUpdate) = kComputeUnderGpuUpdate;
  }

  const Architecture& arch_;
  const ModelSpec& spec_;
  const RunShape& run_;
  const Hardware& hardware_;
  StoredProfile profile_;
};

}  // namespace

StoredProfile estimate_profile(const Architecture& arch, const ModelSpec& spec, const RunShape& run,
                               const Hardware& hardware) {
  PROTRAIN_CHECK(arch.layers + 2 == static_cast<std::int64_t>(spec.blocks.size()));
  return Estimator(arch, spec, run, hardware).estimate();
}

}  // namespace protrain
