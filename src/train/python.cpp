#include "train/python.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModule = "protrain/prepare.py";

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
  return fs::exists(python) ? python.string() : std::string();
}

}  // namespace

std::string python_executable() {
  if (const char* chosen = std::getenv("PROTRAIN_PYTHON"); chosen && *chosen) return chosen;
  const std::string found = environment_python();
  return found.empty() ? "python3" : found;
}

std::string python_modules() {
  std::error_code error;
  // The binary lies in <source>/build/<preset>/bin.
  for (fs::path at = fs::read_symlink("/proc/self/exe", error).parent_path(); at.has_relative_path();
       at = at.parent_path()) {
    if (fs::exists(at / "python" / kModule)) return (at / "python").string();
  }
  const fs::path built_from = fs::path(__FILE__).parent_path().parent_path().parent_path() / "python";
  if (fs::exists(built_from / kModule)) return built_from.string();
  fail(ExitCode::kConfig, "the Python part ({}) is neither beside this program nor in {}", kModule,
       built_from.string());
}

}  // namespace protrain
