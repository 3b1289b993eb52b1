#include "train/python.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "train/child_process.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModule = "protrain/prepare.py";
constexpr const char* kVariable = "PROTRAIN_PYTHON";

// $PROTRAIN_PYTHON, or empty.
std::string chosen_python() {
  const char* chosen = std::getenv(kVariable);
  return chosen ? chosen : "";
}

// Says that it is a Python of a known age, then what it lacks. Looks for modules without importing them: that is slow.
constexpr const char* kProbe =
    "import sys, importlib.util as u\n"
    "print('protrain-python', sys.version_info >= (3, 9), "
    "*[m for m in ('numpy', 'tokenizers', 'transformers') if u.find_spec(m) is None])\n";
constexpr std::string_view kAnswer = "protrain-python ";

// What is wrong with it, after its name; empty when nothing is.
std::string fault_of(const std::string& python) {
  std::string answer, other;
  const int status = run_child({python, "-c", kProbe}, {{"PYTHONPATH", ""}}, [&](const std::string& line) {
    if (line.starts_with(kAnswer)) answer = line.substr(kAnswer.size());
    other = line;
  });
  if (status == 127 && answer.empty()) return "cannot be run (it is missing, or no program)";
  if (status != 0 || answer.empty()) return "is not a Python" + (other.empty() ? "" : " (it says: " + other + ")");
  if (!answer.starts_with("True")) return "is too old";
  const std::size_t lacking = answer.find(' ');
  return lacking == std::string::npos ? "" : "lacks the module " + answer.substr(lacking + 1);
}

}  // namespace

std::string python_fault() {
  const std::string python = python_executable();
  const std::string fault = fault_of(python);
  if (fault.empty()) return {};
  constexpr std::string_view kRight = "a Python 3.9 or newer with numpy, tokenizers and transformers";
  if (!chosen_python().empty()) {
    return fmt::format("{}: {} {}; it must name {} (unset, the Python of the build is taken)", kVariable, python, fault,
                       kRight);
  }
  return fmt::format("the Python that prepares data, {}, {}; set {} to {}", python, fault, kVariable, kRight);
}

// <environment>/lib/python3.x/site-packages/torch/lib/libc10.so -> <environment>/bin/python
std::string environment_python() {
  void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
  if (!library) return {};
  Dl_info info{};
  // Any symbol of c10 tells the file.
  void* symbol = dlsym(library, "_ZN3c1015GetCPUAllocatorEv");
  dlclose(library);
  if (!symbol || dladdr(symbol, &info) == 0 || !info.dli_fname) return {};
  fs::path at = fs::absolute(info.dli_fname);
  for (int up = 0; up < 6; ++up) at = at.parent_path();
  const fs::path python = at / "bin" / "python";
  std::error_code absent;
  return fs::exists(python, absent) ? python.string() : std::string();
}

std::string python_executable() {
  if (const std::string chosen = chosen_python(); !chosen.empty()) return chosen;
  const std::string found = environment_python();
  return found.empty() ? "python3" : found;
}

std::string python_modules() {
  std::error_code error;
  // The binary lies in <source>/build/<preset>/bin.
  for (fs::path at = fs::read_symlink("/proc/self/exe", error).parent_path(); at.has_relative_path();
       at = at.parent_path()) {
    if (fs::exists(at / "python" / kModule, error)) return (at / "python").string();
  }
  const fs::path built_from = fs::path(__FILE__).parent_path().parent_path().parent_path() / "python";
  if (fs::exists(built_from / kModule, error)) return built_from.string();
  fail(ExitCode::kConfig, "the Python part ({}) is neither beside this program nor in {}", kModule,
       built_from.string());
}

}  // namespace protrain
