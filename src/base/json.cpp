#include "base/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace protrain {
namespace {

constexpr int kDeepest = 256;

std::int64_t line_of(std::string_view text, std::size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  return 1 + std::count(text.begin(), end, '\n');
}

// nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 2: reason".
std::string reason(const nlohmann::json::parse_error& error) {
  const std::string what = error.what();
  const auto at = what.find("column ");
  const auto colon = at == std::string::npos ? at : what.find(": ", at);
  return colon == std::string::npos ? what : what.substr(colon + 2);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file, ExitCode code) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open now
  std::string duplicate;
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    if (depth > kDeepest) fail(code, "{}: nested more than {} levels deep", file, kDeepest);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get_ref<const std::string&>()).second && duplicate.empty()) {
      duplicate = value.get_ref<const std::string&>();
    }
    return true;
  };
  nlohmann::json tree;
  try {
    tree = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    fail(code, "{}:{}: not JSON ({})", file, line_of(text, error.byte), reason(error));
  } catch (const nlohmann::json::out_of_range& error) {
    fail(code, "{}: not JSON ({})", file, error.what());
  }
  if (!duplicate.empty())
    fail(code, "{}: key {} appears twice in one object; keep one of them", file, shown(duplicate));
  return tree;
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace protrain
