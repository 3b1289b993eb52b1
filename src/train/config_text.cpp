// TrainConfig -> text: the resolved config and the help.
#include <yaml-cpp/yaml.h>

#include <charconv>

#include "base/error.h"
#include "train/config.h"

namespace protrain {
namespace {

// Shortest text that reads back to the same double.
std::string number(double value) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  PROTRAIN_CHECK(error == std::errc());
  return {text, end};
}

std::string yaml_text(const std::string& value) {
  YAML::Emitter out;
  out.SetStringFormat(YAML::DoubleQuoted);
  out << value;
  return out.c_str();
}

std::string shown(const std::string& value) {
  // Plain when no reader could take it for anything else.
  const bool plain = !value.empty() && value != "true" && value != "null" &&
                     value.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") ==
                         std::string::npos &&
                     std::isalnum(static_cast<unsigned char>(value[0]));
  return plain ? value : yaml_text(value);
}
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(std::int64_t value) { return std::to_string(value); }
std::string shown(double value) { return number(value); }
std::string shown(const std::optional<double>& value) { return value ? number(*value) : "null"; }
std::string shown(Switch value) { return value == Switch::kAuto ? "auto" : value == Switch::kTrue ? "true" : "false"; }
std::string shown(ByteSize value) {
  const bool whole = value.bytes > 0 && value.bytes % kMiB == 0;
  return whole ? fmt::format("{}MiB", value.bytes / kMiB) : std::to_string(value.bytes);
}
template <typename T>
std::string shown(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + shown(value);
  return "[" + text + "]";
}

std::string_view type_name(const ConfigKey& key) {
  constexpr std::string_view kNames[] = {"text", "true|false", "integer", "number", "number", "true|false|auto",
                                         "size", "texts",      "integers"};
  if (!key.zero.empty()) return "integer|auto";
  return key.choices.empty() ? kNames[key.member.index()] : key.choices;
}

}  // namespace

std::string print_value(const TrainConfig& config, const ConfigKey& key) {
  if (key.name == "resume_from_checkpoint" && config.resume_from_checkpoint == "true") return "true";
  const std::string text = std::visit([&](auto member) { return shown(config.*member); }, key.member);
  return !key.zero.empty() && text == "0" ? std::string(key.zero) : text;
}

std::string print_config(const TrainConfig& config) {
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    if (key.name == "num_train_epochs" && config.max_steps >= 0) continue;  // max_steps rules; both would be refused
    text += fmt::format("{}: {}\n", key.name, print_value(config, key));
  }
  return text;
}

std::string describe_keys() {
  const TrainConfig defaults;
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    const std::string value = print_value(defaults, key);
    text += fmt::format("  --{} {}\n      {} [{}]\n", key.name, type_name(key), key.help, value);
    if (!key.alias.empty()) text.insert(text.size() - 1, fmt::format(" (or --{})", key.alias));
  }
  return text;
}

}  // namespace protrain
