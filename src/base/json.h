// JSON text to a tree, with errors that name the place. Include this instead of nlohmann's header, which is dear to
// compile: only the .cpp that looks into the tree includes <nlohmann/json.hpp>. Thread-safe.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace protrain {

// Strict JSON, at most 256 levels deep (trees are walked by recursion); a key that appears twice in one object is an
// error too. Throws Error(code): "FILE:LINE: not JSON (why)".
nlohmann::json parse_json(std::string_view text, const std::string& file, ExitCode code);

// A value for a message: JSON on one line, in ASCII, its first 60 characters.
std::string shown(const nlohmann::json&);

}  // namespace protrain
