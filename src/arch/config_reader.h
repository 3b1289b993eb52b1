// Typed access to the keys of a config.json. A key that is absent or null takes the fallback; a value of another type
// is Error(kFiles) naming file, key and value. Private to arch/. Values only; const methods are thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace protrain {

class ConfigReader {
 public:
  ConfigReader(const std::string& text, const std::string& file);  // Error(kFiles) unless one JSON object

  const std::string& file() const { return file_; }
  bool contains(const std::string& key) const;      // there, perhaps as null
  bool has(const std::string& key) const;           // there and not null
  std::string shown(const std::string& key) const;  // the value as JSON, for messages

  // In [1, most].
  std::int64_t size(const std::string& key, std::int64_t most) const;  // Error(kFiles) when absent or null
  std::int64_t size(const std::string& key, std::int64_t most, std::int64_t fallback) const;
  std::int64_t integer(const std::string& key, std::int64_t fallback) const;
  double number(const std::string& key, double fallback) const;       // finite
  double probability(const std::string& key, double fallback) const;  // [0, 1)
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::vector<std::string> texts(const std::string& key) const;  // empty when absent or null
  ConfigReader object(const std::string& key) const;             // empty when absent or null

  // Error(kFiles): FILE: "key" is VALUE, should be WHAT.
  [[noreturn]] void wrong(const std::string& key, const std::string& should_be) const;
  // Error(kConfig): FILE: "key": VALUE is not supported; WHAT.
  [[noreturn]] void unsupported(const std::string& key, const std::string& what) const;

 private:
  ConfigReader(std::shared_ptr<const nlohmann::json> tree, std::string file, std::string prefix);
  const nlohmann::json* find(const std::string& key) const;  // null when absent or JSON null

  std::shared_ptr<const nlohmann::json> tree_;
  std::string file_;
  std::string prefix_;  // "rope_scaling." of a nested object
};

}  // namespace protrain
