#include "base/out_of_memory.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <system_error>

namespace protrain {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    // A thread that cannot get its stack comes out as EAGAIN.
    if (system->code() == std::errc::not_enough_memory) return true;
    if (system->code() == std::errc::resource_unavailable_try_again) return true;
  }
  constexpr std::array<std::string_view, 6> kTexts = {
      "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory", "out of memory",
      "OUT_OF_MEMORY",  "Cannot allocate memory"};
  const std::string_view text = error.what();
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

}  // namespace protrain
