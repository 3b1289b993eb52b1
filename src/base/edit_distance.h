// How unlike two words are, for "did you mean". Pure.
#pragma once
#include <cstddef>
#include <string_view>

namespace protrain {

// The fewest characters to insert, remove or replace that make `a` into `b` (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace protrain
