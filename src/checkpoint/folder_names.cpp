#include "checkpoint/folder_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace protrain {
namespace {

bool starts_and_ends(std::string_view name, std::string_view start, std::string_view end) {
  return name.size() >= start.size() + end.size() && name.starts_with(start) && name.ends_with(end);
}

}  // namespace

std::string shard_name(std::size_t index, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", index, count);
}

bool is_shard(std::string_view name) {
  constexpr std::string_view kStart = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  if (!starts_and_ends(name, kStart, kEnd)) return false;
  name.remove_prefix(kStart.size());
  name.remove_suffix(kEnd.size());
  const std::size_t middle = name.find(kMiddle);
  if (middle == std::string_view::npos) return false;
  const auto digits = [](std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return digits(name.substr(0, middle)) && digits(name.substr(middle + kMiddle.size()));
}

bool is_weight_file(std::string_view name) { return name == kSingleFile || name == kIndexFile || is_shard(name); }

bool is_other_weights(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEnds = {
      ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pth", ".pt"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_companion(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames = {"generation_config.json",  "merges.txt",
                                                      "special_tokens_map.json", "added_tokens.json",
                                                      "chat_template.jinja",     "chat_template.json"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || starts_and_ends(name, "tokenizer", ".json") ||
         name.starts_with("vocab.") || starts_and_ends(name, "", ".model");
}

}  // namespace protrain
