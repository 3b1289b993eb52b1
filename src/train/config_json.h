// A part of a YAML file as JSON text, for a section whose keys another layer knows. Pure; sees base and the two parsers
// only.
#pragma once
#include <yaml-cpp/yaml.h>

#include <string>

namespace protrain {

// One line. Plain scalars that read as numbers, true, false or null become those, all others strings. `where` is the
// section's key. Error(kConfig) naming file and line for keys that are no plain words, keys given twice, and more than
// a few levels.
std::string json_of(const YAML::Node&, const std::string& file, const std::string& where);

// The same of one flow mapping, "{order: layer}"; JSON stays as it is. `file` is where the text stands.
std::string json_of_text(const std::string& text, const std::string& file, const std::string& where);

// The one document of a file; not YAML::LoadAll, which never ends on a text that starts with a comma. Error(kConfig).
YAML::Node yaml_document(const std::string& yaml, const std::string& file);

}  // namespace protrain
