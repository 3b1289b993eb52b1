#include "arch/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace protrain {

using nlohmann::json;

ConfigReader::ConfigReader(const std::string& text, const std::string& file)
    : tree_(std::make_shared<const json>(parse_json(text, file, ExitCode::kFiles))), file_(file) {
  if (!tree_->is_object()) fail(ExitCode::kFiles, "{}: should hold one JSON object", file_);
}

ConfigReader::ConfigReader(std::shared_ptr<const json> tree, std::string file, std::string prefix)
    : tree_(std::move(tree)), file_(std::move(file)), prefix_(std::move(prefix)) {}

bool ConfigReader::contains(const std::string& key) const { return tree_->contains(key); }
bool ConfigReader::has(const std::string& key) const { return find(key) != nullptr; }

const json* ConfigReader::find(const std::string& key) const {
  const auto at = tree_->find(key);
  return at == tree_->end() || at->is_null() ? nullptr : &*at;
}

std::string ConfigReader::shown(const std::string& key) const {
  const auto at = tree_->find(key);
  return at == tree_->end() ? "absent" : protrain::shown(*at);
}

void ConfigReader::wrong(const std::string& key, const std::string& should_be) const {
  fail(ExitCode::kFiles, "{}: \"{}{}\" is {}, should be {}", file_, prefix_, key, shown(key), should_be);
}

void ConfigReader::unsupported(const std::string& key, const std::string& what) const {
  fail(ExitCode::kConfig, "{}: \"{}{}\": {} is not supported; {}", file_, prefix_, key, shown(key), what);
}

std::int64_t ConfigReader::size(const std::string& key, std::int64_t most) const {
  if (!has(key)) wrong(key, fmt::format("a number from 1 to {}", most));
  return size(key, most, 0);
}

std::int64_t ConfigReader::size(const std::string& key, std::int64_t most, std::int64_t fallback) const {
  if (!has(key)) return fallback;
  const std::int64_t value = integer(key, 0);
  if (value < 1 || value > most) wrong(key, fmt::format("a number from 1 to {}", most));
  return value;
}

std::int64_t ConfigReader::integer(const std::string& key, std::int64_t fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
  if (!fits) wrong(key, "a whole number");
  return value->get<std::int64_t>();
}

double ConfigReader::number(const std::string& key, double fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) wrong(key, "a number");
  return value->get<double>();
}

double ConfigReader::probability(const std::string& key, double fallback) const {
  const double value = number(key, fallback);
  if (value < 0 || value >= 1) wrong(key, "a number in [0, 1)");
  return value;
}

bool ConfigReader::flag(const std::string& key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) wrong(key, "a string");
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> items;
  bool strings = value->is_array();
  if (strings) {
    for (const json& item : *value) {
      strings = strings && item.is_string();
      if (strings) items.push_back(item.get<std::string>());
    }
  }
  if (!strings) wrong(key, "a list of strings");
  return items;
}

ConfigReader ConfigReader::object(const std::string& key) const {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) wrong(key, "an object");
  auto tree = std::make_shared<const json>(value == nullptr ? json::object() : *value);
  return {std::move(tree), file_, prefix_ + key + "."};
}

}  // namespace protrain
