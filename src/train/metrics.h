// output_dir/metrics.jsonl: one JSON object a line, numbers in full precision, flushed row by row. Resume keeps the
// rows up to the resumed step and appends. One thread. Errors: Error(kFiles).
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/files.h"

namespace protrain {

// Fields in the order of adding. A number that is not finite becomes null, since JSON has none.
class MetricsRow {
 public:
  explicit MetricsRow(std::int64_t step) { add("step", step); }
  MetricsRow& add(std::string name, double value) { return put(std::move(name), value); }
  MetricsRow& add(std::string name, std::int64_t value) { return put(std::move(name), value); }
  MetricsRow& add(std::string name, bool value) { return put(std::move(name), value); }
  MetricsRow& add(std::string name, const char* value) { return put(std::move(name), std::string(value)); }

  std::string json() const;
  std::int64_t step() const;
  // Finite numbers only: what a chart can show.
  std::vector<std::pair<std::string, double>> numbers() const;

 private:
  using Value = std::variant<double, std::int64_t, bool, std::string>;
  MetricsRow& put(std::string name, Value value) {
    fields_.emplace_back(std::move(name), std::move(value));
    return *this;
  }
  std::vector<std::pair<std::string, Value>> fields_;
};

class MetricsLog {
 public:
  // Rows of an existing file with a step above `resumed_step`, and a torn last line, are dropped; 0 starts anew.
  MetricsLog(Files&, const std::filesystem::path& file, std::int64_t resumed_step);
  void write(const MetricsRow&);

 private:
  std::unique_ptr<WritableFile> file_;
};

// The rows of `text` that stay when a run resumes at `step`.
std::string kept_rows(const std::string& text, std::int64_t step);

}  // namespace protrain
