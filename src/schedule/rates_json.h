// A profile as a file: what calls ask of memory, what tasks cost, and what it was made for. Pure;
// thread-safe.
#pragma once
#include "schedule/rates.h"

namespace protrain {

struct StoredProfile {
  std::string key;  // of model, shapes, machine and versions (profile/); empty in a file written by hand
  std::string machine;
  DType compute = DType::kF32;
  Bytes outside = 0;  // of the device's memory, beside the arena
  Profile memory;
  Rates rates;
};

std::string profile_json(const StoredProfile&);
// Error(kConfig) naming file, key and value. Unknown keys and another schema are refused.
StoredProfile parse_profile(const std::string& json, const std::string& file);

}  // namespace protrain
