#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/json_files.h"
#include "checkpoint/model_files.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

constexpr float kHalfOverflows = 65520;  // rounds to infinity in fp16
constexpr const char* kPartial = ".partial";

// Consecutive parameters of one weight file.
struct Shard {
  std::string name;
  std::vector<Id> parameters;
};

std::vector<Shard> make_shards(const ModelSpec& spec, DType dtype, Bytes shard_bytes) {
  std::vector<Shard> shards(1);
  Bytes filled = 0;
  for (std::size_t id = 0; id < spec.parameters.size(); ++id) {
    const Bytes bytes = spec.parameters[id].elements() * size_of(dtype);
    if (!shards.back().parameters.empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().parameters.push_back(static_cast<Id>(id));
    filled += bytes;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1 ? kSingleFile : shard_name(i + 1, shards.size());
  }
  return shards;
}

struct Buffers {
  std::vector<float> values;
  std::vector<std::byte> bytes;
};

void check_weights(const ParameterSpec& parameter, DType dtype, std::int64_t first, const std::vector<float>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  if (const std::int64_t bad = first_non_finite(values.data(), n); bad >= 0) {
    fail(ExitCode::kNonFinite, "tensor '{}': element {} is {}: not saved", parameter.name, first + bad, values[bad]);
  }
  if (dtype != DType::kF16) return;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::abs(values[i]) < kHalfOverflows) continue;
    fail(ExitCode::kFiles, "tensor '{}': element {} is {}, more than float16 can hold; export as bfloat16 or float32",
         parameter.name, first + i, values[i]);
  }
}

// Fills the buffers with the piece as the file shall hold it.
void make_piece(const ChunkStore& store, const Piece& piece, DType dtype, Buffers& buffers) {
  buffers.values.resize(static_cast<std::size_t>(piece.count));
  buffers.bytes.resize(static_cast<std::size_t>(piece.count * size_of(dtype)));
  if (dtype == store.compute()) {
    store.read(piece.parameter, Part::kWeight, piece.first, piece.count, buffers.bytes.data());
    to_float(dtype, buffers.bytes.data(), buffers.values.data(), piece.count);
  } else {
    store.read_master(piece.parameter, piece.first, piece.count, buffers.values.data());
    from_float(dtype, buffers.values.data(), buffers.bytes.data(), piece.count);
  }
  check_weights(store.spec().parameters[piece.parameter], dtype, piece.first, buffers.values);
}

void write_shard(Files& files, const ChunkStore& store, const Shard& shard, const fs::path& path,
                 const ExportOptions& options, PieceTeam& team) {
  std::vector<TensorInfo> tensors;
  for (const Id id : shard.parameters) {
    const ParameterSpec& parameter = store.spec().parameters[id];
    tensors.push_back({.name = parameter.name, .dtype = options.dtype, .shape = parameter.shape});
  }
  SafetensorsWriter writer(files, path, std::move(tensors), {{"format", "pt"}});
  std::vector<Buffers> buffers(team.slots());
  team.run(
      cut_pieces(store.spec(), shard.parameters),
      [&](const Piece& piece, std::size_t slot) { make_piece(store, piece, options.dtype, buffers[slot]); },
      [&](const Piece&, std::size_t slot) { writer.append(buffers[slot].bytes); });
  writer.finish(options.sync);
}

void copy_file(Files& files, const fs::path& from, const fs::path& to, bool sync) {
  const std::unique_ptr<ReadableFile> in = files.open(from);
  const std::unique_ptr<WritableFile> out = files.create(to);
  std::vector<std::byte> buffer;
  for (Bytes offset = 0; offset < in->size(); offset += static_cast<Bytes>(buffer.size())) {
    buffer.resize(static_cast<std::size_t>(std::min(in->size() - offset, 4 * kMiB)));
    in->read_at(offset, buffer);
    out->write(buffer);
  }
  if (sync) out->sync();
  out->close();
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return a.lexically_normal() == b.lexically_normal() || fs::equivalent(a, b, ignored);
}

}  // namespace

void export_model(Files& files, const ChunkStore& store, const std::string& config_json,
                  const std::optional<fs::path>& source, const fs::path& to, const ExportOptions& options) {
  PROTRAIN_CHECK(is_weight_dtype(options.dtype) && options.shard_bytes > 0);
  const std::string config = config_with_dtype(config_json, options.dtype, kConfigFile);
  const ModelSpec& spec = store.spec();
  files.make_directories(to);

  const std::vector<Shard> shards = make_shards(spec, options.dtype, options.shard_bytes);
  std::set<std::string> written;
  std::map<std::string, std::string> weight_map;
  Bytes total_bytes = 0;
  PieceTeam team;
  for (const Shard& shard : shards) {
    write_shard(files, store, shard, to / (shard.name + kPartial), options, team);
    written.insert(shard.name);
    for (const Id id : shard.parameters) {
      weight_map.emplace(spec.parameters[id].name, shard.name);
      total_bytes += spec.parameters[id].elements() * size_of(options.dtype);
    }
  }
  if (shards.size() > 1) {
    files.write_text(to / (std::string(kIndexFile) + kPartial), index_text(weight_map, total_bytes), options.sync);
    written.insert(kIndexFile);
  }
  files.write_text(to / (std::string(kConfigFile) + kPartial), config, options.sync);
  written.insert(kConfigFile);
  for (const std::string& name : written) files.rename(to / (name + kPartial), to / name);
  for (const std::string& name : files.list(to)) {
    if (is_weight_file(name) && !written.contains(name)) files.remove_all(to / name);
  }

  if (source && files.exists(*source) && !same_folder(*source, to)) {
    for (const std::string& name : files.list(*source)) {
      if (!is_companion(name)) continue;
      copy_file(files, *source / name, to / name, options.sync);
      written.insert(name);
    }
    for (const std::string& name : files.list(to)) {
      if (options.replace_companions && is_companion(name) && !written.contains(name)) files.remove_all(to / name);
    }
  }
  if (options.sync) files.sync_directory(to);
}

}  // namespace protrain
