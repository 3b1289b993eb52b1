// Profiles that were measured before: a file each in the user's cache, named by a key made of all that shapes them.
// One thread.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "schedule/rates_json.h"
#include "train/measured_model.h"

namespace protrain {

// Of the model (config.json and what the run sets against it), its compute dtype, shapes, accumulation, threads and
// determinism; of the device, its driver, the processor and its cores; of LibTorch, and of how this program measures.
std::string profile_key(const TrainConfig&, const ModelSource&, const MeasuredModel&);

// StoredProfile::machine of what was measured on a device, and back: which kind it was. None for a name that does not
// say so.
std::string machine_name(const Device&);
std::optional<DeviceKind> device_of(const StoredProfile&);

// `profiles` in $PROTRAIN_CACHE, $XDG_CACHE_HOME/protrain or $HOME/.cache/protrain, the first that is set; empty when
// none is.
std::filesystem::path profile_folder();

// None when it is not there; nor, with a warning, when the file is broken or of another key.
std::optional<StoredProfile> load_profile(Files&, const std::filesystem::path& folder, const std::string& key);
// Written aside and renamed, so that any reader finds a whole file. A warning when it cannot be.
void keep_profile(Files&, const std::filesystem::path& folder, const StoredProfile&);

enum class ProfileCache : std::uint8_t {
  // Reads, and times the host's update beside a GPU again, whose speed changes from minute to minute; keeps what was
  // measured on a GPU: on the CPU it takes no time worth a file for each tiny model.
  kUse,
  kKeep,   // reads; keeps whatever was measured
  kRenew,  // measures although it is there, and keeps that
};

// The whole profile of a model whose memory is measured: its rates from the model itself if they are there (kRenew
// aside), from the cache, or measured now, but for what the model's rates have (kRenew aside). Makes the model's update
// kernels where it has none. Error(kDoesNotFit) saying what was being timed when memory ran out.
StoredProfile profile_of(Files&, const TrainConfig&, const ModelSource&, MeasuredModel&, ProfileCache,
                         const std::function<void(const std::string&)>& progress = nullptr);

}  // namespace protrain
