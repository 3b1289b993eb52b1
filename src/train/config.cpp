// YAML and command line -> TrainConfig.
#include "train/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/ranges.h>

#include "base/edit_distance.h"
#include "base/error.h"
#include "train/config_json.h"
#include "train/foreign_keys.h"

namespace protrain {
namespace {

constexpr std::uintmax_t kLargestConfigBytes = 1 << 20;

// Text from the user inside a message: one line, of a bounded length.
std::string show(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  if (text.size() > 80) out += "...";
  return "'" + out + "'";
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.name == name || (!key.alias.empty() && key.alias == name)) return &key;
  }
  return nullptr;
}

[[noreturn]] void unknown_key(const std::string& where, const std::string& shown, std::string_view name) {
  if (const std::string_view instead = instead_of_foreign_key(name); !instead.empty()) {
    fail(ExitCode::kConfig, "{}: {} is a key of other trainers: {}", where, show(shown), instead);
  }
  std::string_view nearest;
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  if (name.size() <= 100) {
    for (const ConfigKey& key : config_keys()) {
      for (const std::string_view candidate : {key.name, key.alias}) {
        if (candidate.empty()) continue;
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < best) {
          best = distance;
          nearest = candidate;
        }
      }
    }
  }
  if (nearest.empty()) {
    fail(ExitCode::kConfig, "{}: unknown key {}; `protrain train --help` lists all keys", where, show(shown));
  }
  fail(ExitCode::kConfig, "{}: unknown key {}; did you mean '{}'?", where, show(shown), nearest);
}

std::optional<bool> to_bool(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  return std::nullopt;
}

template <typename T>
std::optional<T> to_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Knobs, or what a file can be called. A file 5 or [x] is ./5 or ./[x].
bool may_be_plan(const std::string& text) {
  if (text.starts_with('{')) return true;
  const bool long_name = text.size() > NAME_MAX && text.find('/') == std::string::npos;
  return !text.starts_with('[') && text.find('\n') == std::string::npos && !to_number<double>(text) && !long_name;
}

// One value of the user's: scalars as text, lists as several. Assigns it to its member or fails.
class Assigner {
 public:
  Assigner(TrainConfig& config, const ConfigKey& key, std::string where, std::vector<std::string> values, bool list)
      : config_(config), key_(key), where_(std::move(where)), values_(std::move(values)), list_(list) {}

  void assign() {
    std::visit([this](auto member) { set(config_.*member); }, key_.member);
  }

 private:
  [[noreturn]] void wrong(std::string_view value, std::string_view right) const {
    fail(ExitCode::kConfig, "{}: {}: {} is not valid: it must be {}", where_, key_.name, show(value), right);
  }
  std::string whole() const {
    std::string text;
    for (const std::string& value : values_) text += (text.empty() ? "" : ", ") + value;
    return list_ ? "[" + text + "]" : text;
  }
  const std::string& scalar(std::string_view right) const {
    if (list_ || values_.size() != 1) wrong(whole(), right);
    return values_[0];
  }

  std::string range(std::string_view what) const {
    const bool low = std::isfinite(key_.min);
    const bool high = std::isfinite(key_.max);
    const std::string_view up_to = key_.below_max ? "below" : "at most";
    if (low && high) return fmt::format("{}, at least {:.15g} and {} {:.15g}", what, key_.min, up_to, key_.max);
    if (low) return fmt::format("{}, at least {:.15g}", what, key_.min);
    return std::string(what);
  }
  bool in_range(double value) const {
    return std::isfinite(value) && value >= key_.min && (key_.below_max ? value < key_.max : value <= key_.max);
  }

  void set(std::string& to) const {
    const std::string right = key_.name == "plan" ? "a file such as plan.json, or knobs: {order: layer}"
                              : key_.choices.empty()
                                  ? "one text"
                                  : fmt::format("one of {}", fmt::join(split(key_.choices, '|'), ", "));
    const std::string& value = scalar(right);
    check_choice(value, right);
    if (key_.name == "resume_from_checkpoint") {
      const std::optional<bool> flag = to_bool(value);
      to = flag ? (*flag ? "true" : "") : value;
      return;
    }
    if (key_.name == "plan" && !may_be_plan(value)) wrong(value, right);
    to = key_.name == "plan" && value.starts_with('{') ? json_of_text(value, where_, "plan") : value;
  }
  void set(bool& to) const {
    const std::optional<bool> value = to_bool(scalar("true or false"));
    if (!value) wrong(values_[0], "true or false");
    to = *value;
  }
  void set(Switch& to) const {
    const std::string& text = scalar("true, false or auto");
    const std::optional<bool> value = to_bool(text);
    if (!value && text != "auto") wrong(text, "true, false or auto");
    to = !value ? Switch::kAuto : *value ? Switch::kTrue : Switch::kFalse;
  }
  void set(std::int64_t& to) const { to = integer(scalar(range("an integer"))); }
  void set(double& to) const {
    const std::string right = range("a number");
    const std::string& text = scalar(right);
    const std::optional<double> value = to_number<double>(text);
    if (!value || !in_range(*value)) wrong(text, right);
    to = *value;
  }
  void set(std::optional<double>& to) const { set(to.emplace()); }
  void set(ByteSize& to) const {
    const std::string right =
        range("a whole number of bytes, or a size such as 64MiB, 24GB or 1TiB (the largest unit)") + " bytes";
    const std::string& text = scalar(right);
    try {
      to.bytes = parse_bytes(text);
    } catch (const Error&) {
      wrong(text, right);
    }
    if (!in_range(static_cast<double>(to.bytes))) wrong(text, right);
  }
  void set(std::vector<std::string>& to) const {
    const std::string right = key_.choices.empty() ? "a text or a list of texts"
                                                   : fmt::format("of {}", fmt::join(split(key_.choices, '|'), ", "));
    to.clear();
    for (const std::string& value : values_) {
      check_choice(value, right);
      if (!value.empty()) to.push_back(value);
    }
    if (key_.choices.starts_with("none|")) std::erase(to, "none");
  }
  void set(std::vector<std::int64_t>& to) const {
    to.clear();
    for (const std::string& value : values_) to.push_back(integer(value));
  }

  void check_choice(const std::string& value, const std::string& right) const {
    if (key_.choices.empty()) return;
    for (const std::string_view choice : split(key_.choices, '|')) {
      if (choice == value) return;
    }
    wrong(value, right);
  }
  std::int64_t integer(const std::string& text) const {
    if (!key_.zero.empty() && text == key_.zero) return 0;
    const std::optional<std::int64_t> value = to_number<std::int64_t>(text);
    if (!value || !in_range(static_cast<double>(*value))) {
      wrong(text, key_.zero.empty() ? range("an integer") : fmt::format("{}, or {}", range("an integer"), key_.zero));
    }
    return *value;
  }

  TrainConfig& config_;
  const ConfigKey& key_;
  std::string where_;
  std::vector<std::string> values_;
  bool list_;
};

void reset(TrainConfig& config, const ConfigKey& key) {
  static const TrainConfig kDefaults;
  std::visit([&](auto member) { config.*member = kDefaults.*member; }, key.member);
  config.given.erase(std::string(key.name));
}

void set_key(TrainConfig& config, const ConfigKey& key, const std::string& where, std::vector<std::string> values,
             bool list) {
  Assigner(config, key, where, std::move(values), list).assign();
  config.given[std::string(key.name)] = where;
}

void apply_yaml(TrainConfig& config, const std::string& yaml, const std::string& file) {
  const YAML::Node root = yaml_document(yaml, file);
  if (!root.IsDefined() || root.IsNull()) return;
  if (!root.IsMap()) fail(ExitCode::kConfig, "{}:{}: not a list of `key: value`", file, root.Mark().line + 1);

  std::map<std::string, int> seen;  // the table's name -> line
  for (const auto& entry : root) {
    const int line = entry.first.Mark().line + 1;
    const std::string where = fmt::format("{}:{}", file, line);
    if (!entry.first.IsScalar()) fail(ExitCode::kConfig, "{}: a key must be a plain word", where);
    const std::string name = entry.first.Scalar();
    const ConfigKey* key = find_key(name);
    if (!key) unknown_key(where, name, name);
    const auto [other, fresh] = seen.emplace(key->name, line);
    if (!fresh) fail(ExitCode::kConfig, "{}: {} is given twice (first in line {})", where, key->name, other->second);

    const YAML::Node& value = entry.second;
    if (value.IsNull()) {
      reset(config, *key);
    } else if (value.IsScalar()) {
      set_key(config, *key, where, {value.Scalar()}, false);
    } else if (value.IsSequence()) {
      std::vector<std::string> values;
      for (const auto& item : value) {
        if (!item.IsScalar()) {
          fail(ExitCode::kConfig, "{}:{}: {}: an entry of the list is not a plain value", file, item.Mark().line + 1,
               key->name);
        }
        values.push_back(item.Scalar());
      }
      set_key(config, *key, where, std::move(values), true);
    } else if (key->name == "plan") {
      set_key(config, *key, where, {json_of(value, file, "plan")}, false);
    } else {
      fail(ExitCode::kConfig, "{}: {}: holds a nested mapping; it must be a plain value or a list", where, key->name);
    }
  }
}

void apply_overrides(TrainConfig& config, std::span<const std::string> overrides) {
  const std::string where(kCommandLine);
  std::map<std::string_view, std::string> seen;  // the table's name -> value
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    const std::string& word = overrides[i];
    if (!word.starts_with("--") || word.size() < 3) {
      fail(ExitCode::kConfig, "{}: {} is not an option; write --key value", where, show(word));
    }
    const auto equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::ranges::replace(name, '-', '_');
    const ConfigKey* key = find_key(name);
    if (!key) unknown_key(where, word.substr(0, equals), name);

    const bool flag = std::holds_alternative<bool TrainConfig::*>(key->member) ||
                      std::holds_alternative<Switch TrainConfig::*>(key->member) || name == "resume_from_checkpoint";
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < overrides.size() && !overrides[i + 1].starts_with("--")) {
      value = overrides[++i];
    } else if (flag) {
      value = "true";
    } else {
      fail(ExitCode::kConfig, "{}: {} has no value; write {} VALUE, or {}=VALUE for one that begins with --", where,
           word, word, word);
    }
    if (const auto [other, fresh] = seen.emplace(key->name, value); !fresh) {
      fail(ExitCode::kConfig, "{}: --{} is given twice, as {} and as {}: drop one", where, key->name,
           show(other->second), show(value));
    }

    const bool list = std::holds_alternative<std::vector<std::string> TrainConfig::*>(key->member) ||
                      std::holds_alternative<std::vector<std::int64_t> TrainConfig::*>(key->member);
    if (value == "null") {
      reset(config, *key);
    } else if (list) {
      std::vector<std::string> values;
      std::error_code absent;
      if (std::filesystem::exists(value, absent)) {
        values = {value};  // one file whose name has a comma
      } else if (!value.empty()) {
        for (const std::string_view part : split(value, ',')) values.emplace_back(part);
      }
      set_key(config, *key, where, std::move(values), true);
    } else {
      set_key(config, *key, where, {value}, false);
    }
  }
}

}  // namespace

void check_config(const TrainConfig& config, const std::string& file) {
  const auto refuse_both = [&](const std::string& a, const std::string& b, std::string_view why) {
    fail(ExitCode::kConfig, "{} ({}) and {} ({}) are both given: {}", a, config.given.at(a), b, config.given.at(b),
         why);
  };
  if (config.is_given("num_train_epochs") && config.is_given("max_steps") && config.max_steps >= 0) {
    refuse_both("num_train_epochs", "max_steps",
                "drop one (the run ends after so many epochs, or after so many updates)");
  }
  if (config.is_given("warmup_steps") && config.is_given("warmup_ratio") && config.warmup_steps > 0 &&
      config.warmup_ratio > 0) {
    refuse_both("warmup_steps", "warmup_ratio", "drop one");
  }
  const std::int64_t product = config.per_device_train_batch_size * config.gradient_accumulation_steps;
  if (config.per_device_train_batch_size == 0) {
    if (config.is_given("gradient_accumulation_steps")) {
      refuse_both("per_device_train_batch_size", "gradient_accumulation_steps",
                  "auto chooses both: give train_batch_size, the samples of an update, instead");
    }
    if (config.train_batch_size == 0) {
      fail(ExitCode::kConfig,
           "{}: per_device_train_batch_size is auto: give train_batch_size, the samples of an update, too",
           config.given.at("per_device_train_batch_size"));
    }
  } else if (config.train_batch_size > 0 && config.train_batch_size != product) {
    fail(ExitCode::kConfig,
         "{}: train_batch_size is {}, but per_device_train_batch_size {} x gradient_accumulation_steps {} is {}: drop "
         "it, or give per_device_train_batch_size: auto",
         config.given.at("train_batch_size"), config.train_batch_size, config.per_device_train_batch_size,
         config.gradient_accumulation_steps, product);
  }
  if (!config.model_name_or_path.empty() && !config.config_name.empty()) {
    refuse_both("model_name_or_path", "config_name", "drop one (weights are loaded, or drawn at random)");
  }
  if (config.model_name_or_path.empty() && config.config_name.empty()) {
    fail(ExitCode::kConfig,
         "{}: no model: give model_name_or_path (folder with weights) or config_name (folder with config.json alone)",
         file);
  }
  if (config.train_file.empty()) fail(ExitCode::kConfig, "{}: no data: give train_file", file);
  if (config.output_dir.empty()) fail(ExitCode::kConfig, "{}: output_dir is missing", file);
  if (config.validation_file.empty() && (config.eval_steps > 0 || config.eval_on_start)) {
    const char* key = config.eval_steps > 0 ? "eval_steps" : "eval_on_start";
    fail(ExitCode::kConfig, "{}: {} is given without validation_file: give one, or drop {}", config.given.at(key), key,
         key);
  }
}

TrainConfig parse_config(const std::string& yaml, const std::string& file, std::span<const std::string> overrides) {
  TrainConfig config;
  apply_yaml(config, yaml, file);
  apply_overrides(config, overrides);
  check_config(config, file);
  return config;
}

TrainConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides) {
  std::error_code error;
  if (const auto status = std::filesystem::status(file, error);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail(ExitCode::kConfig, "{}: a configuration must be a regular file", file.string());
  }
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error) fail(ExitCode::kConfig, "{}: {}", file.string(), error.message());
  if (bytes > kLargestConfigBytes) {
    fail(ExitCode::kConfig, "{}: {} bytes are too many for a configuration", file.string(), bytes);
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) fail(ExitCode::kConfig, "{}: cannot be read", file.string());
  return parse_config(text.str(), file.string(), overrides);
}

}  // namespace protrain
