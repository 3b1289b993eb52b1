#include "train/metrics.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/error.h"

namespace protrain {
namespace {

constexpr std::string_view kRowStart = "{\"step\": ";

struct ToJson {
  std::string operator()(double value) const {
    if (!std::isfinite(value)) return "null";
    char text[64];
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);  // shortest that reads back equal
    PROTRAIN_CHECK(error == std::errc());
    return {text, end};
  }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return "\"" + value + "\""; }  // our own plain words only
};

}  // namespace

std::string MetricsRow::json() const {
  std::string text = "{";
  for (const auto& [name, value] : fields_) {
    text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", name, std::visit(ToJson{}, value));
  }
  return text + "}";
}

std::int64_t MetricsRow::step() const { return std::get<std::int64_t>(fields_.front().second); }

std::vector<std::pair<std::string, double>> MetricsRow::numbers() const {
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [name, value] : fields_) {
    if (name == "step") continue;
    if (const auto* real = std::get_if<double>(&value); real && std::isfinite(*real)) out.emplace_back(name, *real);
    if (const auto* whole = std::get_if<std::int64_t>(&value)) out.emplace_back(name, static_cast<double>(*whole));
  }
  return out;
}

std::string kept_rows(const std::string& text, std::int64_t step) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // torn by a crash
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (!line.starts_with(kRowStart)) continue;
    std::int64_t row = 0;
    const auto [rest, error] = std::from_chars(line.data() + kRowStart.size(), line.data() + line.size(), row);
    if (error == std::errc() && row <= step && line.ends_with('}')) kept.append(line).push_back('\n');
  }
  return kept;
}

MetricsLog::MetricsLog(Files& files, const std::filesystem::path& file, std::int64_t resumed_step) {
  std::string kept;
  if (resumed_step > 0 && files.exists(file)) kept = kept_rows(files.read_text(file), resumed_step);
  // Aside first: a crash here must not lose the old rows.
  std::filesystem::path aside = file;
  aside += ".new";
  file_ = files.create(aside);
  if (!kept.empty()) file_->write(std::as_bytes(std::span(kept)));
  files.rename(aside, file);
}

void MetricsLog::write(const MetricsRow& row) {
  const std::string line = row.json() + "\n";
  file_->write(std::as_bytes(std::span(line)));
}

}  // namespace protrain
