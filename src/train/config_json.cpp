#include "train/config_json.h"

#include <yaml-cpp/eventhandler.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"

namespace protrain {
namespace {

constexpr int kDeepest = 4;
constexpr int kMostNodes = 100'000;  // aliases can make a short file long

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// As JSON writes numbers, so that the text can be passed on as it is.
bool is_number(const std::string& text) {
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  if (digits >= text.size() || text[digits] < '0' || text[digits] > '9') return false;
  if (text[digits] == '0' && digits + 1 < text.size() && text[digits + 1] >= '0' && text[digits + 1] <= '9') {
    return false;
  }
  if (text.back() == '.' || text.find(".e") != std::string::npos || text.find(".E") != std::string::npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

std::string convert(const YAML::Node& node, const std::string& file, const std::string& where, int depth, int& nodes) {
  const auto refuse = [&](std::string_view why) {
    fail(ExitCode::kConfig, "{}:{}: {}: {}", file, node.Mark().line + 1, where, why);
  };
  if (depth > kDeepest) refuse("too deep");
  if (++nodes > kMostNodes) refuse("too long");
  if (!node.IsDefined() || node.IsNull()) return "null";
  if (node.IsScalar()) {
    const std::string& text = node.Scalar();
    const bool plain = node.Tag() != "!";  // "!": it was quoted
    if (plain && (text == "true" || text == "false" || is_number(text))) return text;
    return quoted(text);
  }
  std::string out;
  if (node.IsSequence()) {
    for (const auto& item : node) out += (out.empty() ? "" : ", ") + convert(item, file, where, depth + 1, nodes);
    return "[" + out + "]";
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) refuse("a key must be a plain word");
    const std::string& key = entry.first.Scalar();
    if (!seen.insert(key).second) refuse("a key is given twice");
    if (entry.second.IsNull() && key.find(':') != std::string::npos) {
      refuse(fmt::format("{} has no value: write a space after the colon", quoted(key)));
    }
    if (entry.second.IsNull()) continue;  // the default, as elsewhere
    out += (out.empty() ? "" : ", ") + quoted(key) + ": " + convert(entry.second, file, where, depth + 1, nodes);
  }
  return "{" + out + "}";
}

class NothingHandler : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

YAML::Node yaml_document(const std::string& yaml, const std::string& file) {
  try {
    std::istringstream in(yaml);
    YAML::Parser parser(in);
    NothingHandler nothing;
    if (parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing)) {
      fail(ExitCode::kConfig, "{}: not one YAML document of `key: value` lines", file);
    }
    return YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    fail(ExitCode::kConfig, "{}:{}: not YAML: {}", file, error.mark.line + 1, error.msg);
  }
}

std::string json_of(const YAML::Node& node, const std::string& file, const std::string& where) {
  int nodes = 0;
  return convert(node, file, where, 0, nodes);
}

std::string json_of_text(const std::string& text, const std::string& file, const std::string& where) {
  if (nlohmann::json::accept(text)) return text;
  try {
    return json_of(yaml_document(text, file + ": " + where), file + ": " + where, "text");
  } catch (const Error& error) {
    fail(ExitCode::kConfig, "{}; it must be one mapping such as {{order: layer}}, or JSON", error.what());
  }
}

}  // namespace protrain
