#include "search/hardware.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/json.h"

namespace protrain {
namespace {

using nlohmann::json;

constexpr double kLeast = 1, kMost = 1e18;  // of what has no other limit

struct Key {
  std::string_view name;
  std::variant<Bytes Hardware::*, double Hardware::*, int Hardware::*> member;
  double least = 0;  // from it on when `from`, else from kLeast
  bool from = false;
  bool required = false;
};

constexpr Key kKeys[] = {
    {"device_memory", &Hardware::device_memory, 0, false, true},
    {"outside", &Hardware::outside, 0, true},
    {"host_memory", &Hardware::host_memory, 0, false, true},
    {"bf16_flops", &Hardware::bf16_flops, 0, false, true},
    {"f32_flops", &Hardware::f32_flops, 0, false, true},
    {"attention_flops", &Hardware::attention_flops, 0, false, true},
    {"device_bytes", &Hardware::device_bytes, 0, false, true},
    {"steady_slowdown", &Hardware::steady_slowdown, 1, true},
    {"h2d_bytes", &Hardware::h2d_bytes, 0, false, true},
    {"d2h_bytes", &Hardware::d2h_bytes, 0, false, true},
    {"duplex", &Hardware::duplex, 1, true},
    {"host_bytes", &Hardware::host_bytes, 0, false, true},
    {"update_under_copies", &Hardware::update_under_copies, 1, true},
    {"disk_read_bytes", &Hardware::disk_read_bytes},
    {"disk_write_bytes", &Hardware::disk_write_bytes},
    {"gpus", &Hardware::gpus, 1, true},
};

class Reader {
 public:
  Reader(const json& root, const std::string& file) : root_(root), file_(file) {}

  Hardware read() const {
    if (!root_.is_object()) fail(ExitCode::kConfig, "{}: not a machine: it must be a JSON object", file_);
    Hardware hardware;
    for (const auto& [key, value] : root_.items()) {
      if (key == "source") continue;  // where the figures come from: for the reader
      if (key == "name") {
        if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse(key, value, "a name in quotes");
        hardware.name = value.get<std::string>();
        continue;
      }
      set(hardware, key, value);
    }
    for (const Key& key : kKeys) {
      if (key.required && !root_.contains(key.name)) fail(ExitCode::kConfig, "{}: {} is missing", file_, key.name);
    }
    if (hardware.name.empty()) fail(ExitCode::kConfig, "{}: name is missing", file_);
    if (hardware.gpus > 1) {
      fail(ExitCode::kConfig, "{}: gpus: {}, must be 1: runs on several GPUs come later", file_, hardware.gpus);
    }
    if (hardware.outside >= hardware.device_memory) {
      fail(ExitCode::kConfig, "{}: outside: {} bytes of it are not less than device_memory, {}", file_,
           hardware.outside, hardware.device_memory);
    }
    return hardware;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const json& value, std::string_view right) const {
    fail(ExitCode::kConfig, "{}: {}: {}, must be {}", file_, key, shown(value), right);
  }

  void set(Hardware& hardware, const std::string& name, const json& value) const {
    for (const Key& key : kKeys) {
      if (key.name != name) continue;
      std::visit([&](auto member) { read_to(hardware.*member, key, value); }, key.member);
      return;
    }
    std::string known = "name, source";
    for (const Key& key : kKeys) known += fmt::format(", {}", key.name);
    fail(ExitCode::kConfig, "{}: {} is no key of a machine; there are {}", file_, name, known);
  }

  double number(const Key& key, const json& value) const {
    const double least = key.from ? key.least : kLeast;
    const std::string right = fmt::format("a number, {:g} to {:g}", least, kMost);
    if (!value.is_number()) refuse(key.name, value, right);
    const double found = value.get<double>();
    if (!std::isfinite(found) || found > kMost || found < least) {
      refuse(key.name, value, right);
    }
    return found;
  }

  void read_to(double& to, const Key& key, const json& value) const { to = number(key, value); }
  void read_to(int& to, const Key& key, const json& value) const {
    const double found = number(key, value);
    if (found != std::floor(found) || found > 1e6) refuse(key.name, value, "a whole number");
    to = static_cast<int>(found);
  }
  void read_to(Bytes& to, const Key& key, const json& value) const {
    if (!value.is_string()) {
      to = static_cast<Bytes>(number(key, value));
      return;
    }
    try {
      to = parse_bytes(value.get_ref<const std::string&>());
    } catch (const Error&) {
      refuse(key.name, value, "a number of bytes such as \"24GiB\"");
    }
    if (to == 0 && !key.from) refuse(key.name, value, "more than 0");
  }

  const json& root_;
  const std::string& file_;
};

}  // namespace

Hardware parse_hardware(const std::string& text, const std::string& file) {
  const json root = parse_json(text, file, ExitCode::kConfig);
  return Reader(root, file).read();
}

}  // namespace protrain
