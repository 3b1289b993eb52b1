#include "base/units.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace protrain {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

// Binary and decimal units as people write them; "K", "M", "G" alone are binary, as in most tools that take such flags.
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"k", 1024.0},
    {"m", 1048576.0},
    {"g", 1073741824.0},
    {"t", 1099511627776.0},
    {"kib", 1024.0},
    {"mib", 1048576.0},
    {"gib", 1073741824.0},
    {"tib", 1099511627776.0},
    {"kb", 1e3},
    {"mb", 1e6},
    {"gb", 1e9},
    {"tb", 1e12},
};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::string format_bytes(Bytes bytes) {
  const char* sign = bytes < 0 ? "-" : "";
  // Through double: the most negative count has no positive twin.
  const double size = std::fabs(static_cast<double>(bytes));
  if (size < static_cast<double>(kKiB)) return fmt::format("{}{:.0f} B", sign, size);
  if (size < static_cast<double>(kMiB)) return fmt::format("{}{:.2f} KiB", sign, size / static_cast<double>(kKiB));
  if (size < static_cast<double>(kGiB)) return fmt::format("{}{:.2f} MiB", sign, size / static_cast<double>(kMiB));
  return fmt::format("{}{:.2f} GiB", sign, size / static_cast<double>(kGiB));
}

Bytes parse_bytes(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    fail(ExitCode::kConfig, "\"{}\" is not a byte count ({}): write for example 24GiB, 500MiB, 1.5GB or 4096", text,
         why);
  };
  const std::string_view all = trim(text);
  const auto digits = all.find_first_not_of("0123456789.");
  const std::string_view number = all.substr(0, digits);
  std::string unit;
  if (digits != std::string_view::npos) {
    for (char letter : trim(all.substr(digits))) {
      unit += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    }
  }
  double factor = 0;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == unit) factor = candidate.bytes;
  }
  if (number.empty()) refuse("no number");
  if (factor == 0) refuse("unknown unit");

  // Whole numbers stay exact beyond 2^53; only fractions of a unit go through double.
  std::int64_t whole = 0;
  const char* const end = number.data() + number.size();
  const auto integer = std::from_chars(number.data(), number.data() + number.size(), whole);
  const auto scale = static_cast<std::int64_t>(factor);
  if (integer.ec == std::errc() && integer.ptr == end) {
    if (whole > std::numeric_limits<std::int64_t>::max() / scale) refuse("too large");
    return whole * scale;
  }
  double value = 0;
  const auto real = std::from_chars(number.data(), number.data() + number.size(), value);
  if (real.ec != std::errc() || real.ptr != end) refuse("bad number");
  if (scale == 1) refuse("a part of a byte: without a unit it is a whole number");
  if (value * factor >= 9.2e18) refuse("too large");
  if (value * factor < 1) refuse("less than 1 byte");  // not 0: where 0 has a meaning, it is written as such
  return static_cast<Bytes>(std::llround(value * factor));
}

}  // namespace protrain
