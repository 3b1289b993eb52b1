#include "base/error.h"

namespace protrain {

void fail_check(const char* file, int line, const char* condition, const std::string& detail) {
  throw InternalError(fmt::format("internal error at {}:{}: {} does not hold{}{}", file, line, condition,
                                  detail.empty() ? "" : ": ", detail));
}

}  // namespace protrain
