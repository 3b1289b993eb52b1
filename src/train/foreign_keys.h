// Keys of other trainers' configurations that name no key here. Pure; thread-safe.
#pragma once
#include <string_view>

namespace protrain {

// What this program has instead, for the end of a message; empty for a name that no trainer knows.
std::string_view instead_of_foreign_key(std::string_view name);

}  // namespace protrain
