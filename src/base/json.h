// JSON text to a tree, with errors that name the place. Include this instead of nlohmann's header, which is dear to
// compile: only the .cpp that looks into the tree includes <nlohmann/json.hpp>. Thread-safe.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace protrain {

// Strict JSON; a key that appears twice in one object is an error too. Throws Error(code): "FILE:LINE: not JSON (why)".
nlohmann::json parse_json(std::string_view text, const std::string& file, ExitCode code);

}  // namespace protrain
