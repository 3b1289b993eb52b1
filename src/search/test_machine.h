// Well-known shapes on machines made up from a few figures, for tests and benchmarks of the search: what calls need and
// take follows from the sizes of their tensors alone.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/error.h"
#include "plan/plan_json.h"
#include "search/search.h"

namespace protrain::test {

struct ModelShape {
  std::string name, family;
  std::int64_t hidden, layers, heads, kv_heads, ffn, vocabulary;

  Architecture architecture() const {
    const auto text = [&]() -> std::string {
      if (family == "gpt2") {
        return fmt::format(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": {}, "n_head": {}, "n_positions": 1024,
            "vocab_size": {}, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}})",
                           hidden, layers, heads, vocabulary);
      }
      if (family == "opt") {
        return fmt::format(R"({{"model_type": "opt", "hidden_size": {}, "ffn_dim": {}, "num_hidden_layers": {},
            "num_attention_heads": {}, "max_position_embeddings": 2048, "vocab_size": {}, "dropout": 0,
            "attention_dropout": 0, "pad_token_id": 1, "word_embed_proj_dim": {}}})",
                           hidden, ffn, layers, heads, vocabulary, hidden);
      }
      return fmt::format(R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
          "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
          "max_position_embeddings": 8192}})",
                         family, vocabulary, hidden, ffn, layers, heads, kv_heads);
    };
    return parse_architecture(text(), name);
  }
};

inline std::vector<ModelShape> published_shapes() {
  return {{"GPT2-1B", "gpt2", 1600, 32, 25, 25, 6400, 50257},
          {"GPT2-10B", "gpt2", 4096, 48, 32, 32, 16384, 50257},
          {"GPT2-20B", "gpt2", 6144, 44, 64, 64, 24576, 50257},
          {"GPT2-40B", "gpt2", 8192, 50, 64, 64, 32768, 50257},
          {"OPT-13B", "opt", 5120, 40, 40, 40, 20480, 50272},
          {"OPT-30B", "opt", 7168, 48, 56, 56, 28672, 50272},
          {"LLaMA-13B", "llama", 5120, 40, 40, 40, 13824, 32000},
          {"LLaMA-34B", "llama", 8192, 48, 64, 8, 22016, 32000},
          {"Mistral-7B", "mistral", 4096, 32, 32, 8, 14336, 32000},
          {"LLaMA-3-8B", "llama", 4096, 32, 32, 8, 14336, 128256},
          {"Qwen2.5-14B", "qwen2", 5120, 48, 40, 8, 13824, 152064},
          {"LLaMA-3-70B", "llama", 8192, 80, 64, 8, 28672, 128256}};
}

// An H200, or a 24 GB consumer card; a unit a second.
struct Machine {
  double flops = 600e12, device_bytes = 4e12, h2d = 55e9, d2h = 55e9;
  double cpu_update = 8e9;  // elements
  double slower_when_never_rested = 1.15;
  static Machine consumer() { return {60e12, 8e11, 14e9, 14e9, 3e9, 1.05}; }
  static Machine h200() { return {}; }
};

// One model on one machine. `spec` and the others refer to nothing outside.
struct Setting {
  ModelSpec spec;
  RunShape shape;
  Profile profile;
  Rates rates;

  Setting(const ModelShape& model, std::int64_t rows, std::int64_t row_tokens, std::int64_t accumulation,
          const Machine& machine = Machine::h200())
      : spec(make_spec(model.architecture())), model_(model), machine_(machine) {
    shape.compute = DType::kBf16;
    shape.accumulation = accumulation;
    shape.train_shapes = {{rows, row_tokens, rows, false}};
    shape.eval_shapes = shape.train_shapes;
    profile.library_workspace = 32 * kMiB;
    profile.tables = 4 * kMiB;
    rates.source = "made up";
    for (const BlockSpec& block : spec.blocks) {
      const bool known = std::ranges::any_of(profile.calls, [&](const auto& c) { return c.key.trace == block.trace; });
      if (!known) add(block);
    }
    rates.h2d = {1e-5, 1 / machine.h2d};
    rates.d2h = {1e-5, 1 / machine.d2h};
    rates.cpu_update = {2e-5, 1 / machine.cpu_update};
    rates.gpu_update = {1e-5, 26 / machine.device_bytes};
    rates.norm = {1e-5, 2 / machine.device_bytes};
    rates.round = {1e-5, 6 / machine.device_bytes};
    rates.finish_norm = 2e-5;
    rates.between_steps = 1e-3;
    const auto slows = [&](Lane a, Lane b, double factor) {
      rates.slowdown[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = factor;
    };
    slows(Lane::kH2d, Lane::kD2h, 1.1);
    slows(Lane::kD2h, Lane::kH2d, 1.1);
    slows(Lane::kCompute, Lane::kH2d, 1.02);
    slows(Lane::kCompute, Lane::kD2h, 1.02);
    slows(Lane::kCpuUpdate, Lane::kH2d, 1.15);
    slows(Lane::kCpuUpdate, Lane::kD2h, 1.15);
  }

  SearchResult search(Bytes device, Bytes host, const SearchSpace& space = {}, const SearchLimits& how = {}) const {
    MemoryLimits limits;
    limits.device = device;
    limits.host = host;
    return protrain::search(spec, shape, profile, rates, limits, space, {}, how);
  }

  // The fastest plan of spaces that the whole one contains: the published four knobs; each mode for all layers.
  struct Restricted {
    double seconds = 0;  // 0: none fits
    std::string which;
  };
  Restricted best_restricted(Bytes device, Bytes host, const SearchLimits& how) const {
    Restricted best;
    const auto add = [&](const SearchSpace& space, std::string_view which) {
      const SearchResult found = search(device, host, space, how);
      if (!found.missing.fits()) return;
      if (best.seconds > 0 && found.prediction.step_seconds >= best.seconds) return;
      best = {found.prediction.step_seconds, std::string(which)};
    };
    add(SearchSpace::published(), "published");
    for (int mode = 0; mode < kActivations; ++mode) {
      SearchSpace space;
      space.activation = std::vector(spec.blocks.size(), static_cast<Activation>(mode));
      add(space, activation_name(static_cast<Activation>(mode)));
    }
    return best;
  }

 private:
  void add(const BlockSpec& block) {
    std::int64_t elements = 0;
    for (const Id id : block.parameters) {
      elements += spec.parameters[id].shape.size() > 1 ? spec.parameters[id].elements() : 0;
    }
    const BatchShape& batch = shape.train_shapes.front();
    const auto tokens = static_cast<double>(batch.tokens());
    const auto wide = static_cast<double>(model_.hidden);
    const double kv = wide * static_cast<double>(model_.kv_heads) / static_cast<double>(model_.heads);
    const auto ffn = static_cast<double>(model_.ffn);
    const bool layer = block.kind == BlockKind::kLayer;
    double flops = block.kind == BlockKind::kEmbedding ? 0 : 2 * static_cast<double>(elements) * tokens;
    if (layer) flops += 2 * tokens * static_cast<double>(batch.row_tokens) * wide;
    const double moved = tokens * 2 * (layer ? 8 * wide + 4 * ffn : 3 * wide);
    const double forward = flops / machine_.flops + moved / machine_.device_bytes + 2e-5;
    const double light = tokens * 2 * (3 * wide + 2 * kv + 2 * ffn);
    const double full = light + tokens * 2 * (3 * wide + ffn);
    const auto call = [&](Pass pass, bool is_light, bool training, double seconds, double saved, double workspace) {
      const CallKey key = {block.trace, pass, is_light, batch, training};
      CallMemory memory;
      memory.saved = static_cast<Bytes>(saved);
      memory.workspace = static_cast<Bytes>(workspace);
      memory.workspace_bound = memory.workspace;
      profile.calls.push_back({key, memory});
      rates.calls.push_back({key, seconds, seconds / machine_.slower_when_never_rested});
    };
    const double scratch = tokens * 2 * (layer ? 2 * wide + 3 * ffn : 2 * wide) + 64e6;
    call(Pass::kForward, false, false, forward, 0, scratch);
    if (block.kind == BlockKind::kHead) {
      call(Pass::kBackward, false, true, 3 * forward, 0, scratch);
      return;
    }
    for (const bool is_light : {false, true}) {
      if (!layer && is_light) continue;
      call(Pass::kForwardKeep, is_light, true, forward, !layer ? 0 : is_light ? light : full, scratch);
      call(Pass::kBackward, is_light, true, (is_light ? 2.06 : 2.0) * forward, 0, 1.5 * scratch);
    }
    if (layer) call(Pass::kForward, false, true, forward, 0, scratch);
  }

  ModelShape model_;
  Machine machine_;
};

}  // namespace protrain::test
