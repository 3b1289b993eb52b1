#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/json_files.h"
#include "checkpoint/model_files.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

// Where one tensor lies.
struct Source {
  std::size_t file = 0;
  const TensorInfo* info = nullptr;
};

// Prefixes of the base model that files have or lack: GPT-2's first files lack "transformer.", OPT's lack "model.".
constexpr std::array<std::string_view, 2> kBasePrefixes = {"model.", "transformer."};

// Buffers that older versions of transformers wrote; never weights.
bool is_known_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEnds = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                                     ".attention.masked_bias"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += fmt::format("{}'{}'", i > 0 ? ", " : "", names[i]);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

Id tied_matrix(const ModelSpec& spec) {
  for (const Id id : spec.blocks.front().parameters) {
    const std::vector<Id>& head = spec.blocks.back().parameters;
    if (std::find(head.begin(), head.end(), id) != head.end()) return id;
  }
  PROTRAIN_CHECK(false, "a tied model whose embedding and head share no parameter");
}

}  // namespace

struct ModelFolder::State {
  Files& files;
  fs::path path;
  const ModelSpec& spec;
  std::vector<std::unique_ptr<SafetensorsFile>> opened;
  std::vector<Source> sources;  // by parameter
  std::vector<Source> aliases;  // further copies of the tied matrix
  Id tied = -1;

  State(Files& use_files, const fs::path& use_path, const ModelSpec& use_spec)
      : files(use_files), path(use_path), spec(use_spec) {}

  std::string file_of(const Source& source) const { return opened[source.file]->path().string(); }

  void open_all();
  void open_shards(const std::vector<std::string>& names);
  void match();
  std::string wanted_name(const std::string& in_file, const std::map<std::string, Id>& wanted) const;
  void check(const Source&, const ParameterSpec&) const;
  void read(const Source&, std::int64_t first, std::int64_t count, float* to) const;
  void check_aliases(std::int64_t first, std::int64_t count, const float* matrix) const;
};

void ModelFolder::State::open_all() {
  if (!files.exists(path)) fail(ExitCode::kFiles, "{}: no such model folder", path.string());
  std::vector<std::string> shards;
  std::set<std::string> used;
  bool other_format = false;
  const std::vector<std::string> names = files.list(path);
  for (const std::string& name : names) {
    if (is_shard(name)) shards.push_back(name);
    other_format = other_format || name.ends_with(".bin") || name.ends_with(".gguf") || name.ends_with(".pth");
  }
  if (files.exists(path / kSingleFile)) {
    opened.push_back(std::make_unique<SafetensorsFile>(files, path / kSingleFile));
  } else if (files.exists(path / kIndexFile)) {
    open_shards(names);
    for (const auto& file : opened) used.insert(file->path().filename().string());
  } else if (!shards.empty()) {
    fail(ExitCode::kFiles, "{}: holds {} but no {}", path.string(), shards.front(), kIndexFile);
  } else {
    fail(ExitCode::kFiles, "{}: holds neither {} nor {}{}", path.string(), kSingleFile, kIndexFile,
         other_format ? "; weights in other formats must be converted to safetensors first" : "");
  }
  std::erase_if(shards, [&](const std::string& name) { return used.contains(name); });
  if (!shards.empty()) {
    log::warning("{}: ignores {}, which {} does not name", path.string(), listed(shards),
                 used.empty() ? kSingleFile : kIndexFile);
  }
}

void ModelFolder::State::open_shards(const std::vector<std::string>& names) {
  const std::string index = (path / kIndexFile).string();
  const std::map<std::string, std::string> weight_map = parse_index(files.read_text(path / kIndexFile), index);
  std::map<std::string, std::size_t> by_shard;
  for (const auto& [tensor, shard] : weight_map) {
    if (by_shard.contains(shard)) continue;
    if (!std::binary_search(names.begin(), names.end(), shard)) {
      fail(ExitCode::kFiles, "{}: is missing; {} says that it holds tensor '{}'", (path / shard).string(), kIndexFile,
           tensor);
    }
    by_shard.emplace(shard, opened.size());
    opened.push_back(std::make_unique<SafetensorsFile>(files, path / shard));
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (opened[by_shard.at(shard)]->find(tensor) == nullptr) {
      fail(ExitCode::kFiles, "{}: names tensor '{}' in {}, which does not hold it", index, tensor, shard);
    }
  }
}

std::string ModelFolder::State::wanted_name(const std::string& in_file, const std::map<std::string, Id>& wanted) const {
  if (wanted.contains(in_file)) return in_file;
  for (const std::string_view prefix : kBasePrefixes) {
    if (in_file.starts_with(prefix) && wanted.contains(in_file.substr(prefix.size()))) {
      return in_file.substr(prefix.size());
    }
    if (const std::string longer = std::string(prefix) + in_file; wanted.contains(longer)) return longer;
  }
  return {};
}

void ModelFolder::State::check(const Source& source, const ParameterSpec& parameter) const {
  const TensorInfo& info = *source.info;
  if (!is_weight_dtype(info.dtype)) {
    fail(ExitCode::kFiles, "{}: tensor '{}' is {}; weights must be F32, BF16 or F16", file_of(source), info.name,
         safetensors_name(info.dtype));
  }
  if (info.shape != parameter.shape) {
    fail(ExitCode::kFiles, "{}: tensor '{}' has shape [{}], but {} makes it [{}]", file_of(source), info.name,
         fmt::join(info.shape, ", "), kConfigFile, fmt::join(parameter.shape, ", "));
  }
}

void ModelFolder::State::match() {
  std::map<std::string, Id> wanted;
  for (std::size_t id = 0; id < spec.parameters.size(); ++id) {
    wanted.emplace(spec.parameters[id].name, static_cast<Id>(id));
  }
  if (spec.tied) {
    tied = tied_matrix(spec);
    for (const std::string& name : spec.tied_names) wanted.emplace(name, tied);
  }

  std::map<std::string, Source> found;
  std::vector<std::string> unknown;
  for (std::size_t file = 0; file < opened.size(); ++file) {
    for (const TensorInfo& info : opened[file]->tensors()) {
      const std::string name = wanted_name(info.name, wanted);
      if (name.empty()) {
        if (!is_known_buffer(info.name)) unknown.push_back(info.name);
        continue;
      }
      const auto [other, is_new] = found.emplace(name, Source{file, &info});
      if (!is_new) {
        fail(ExitCode::kFiles, "{}: tensor '{}' stands in {} too, as '{}'", file_of({file, &info}), info.name,
             file_of(other->second), other->second.info->name);
      }
    }
  }
  sources.resize(spec.parameters.size());
  for (const auto& [name, source] : found) {
    const Id id = wanted.at(name);
    check(source, spec.parameters[id]);
    if (name == spec.parameters[id].name) sources[id] = source;
  }
  for (const auto& [name, source] : found) {
    const Id id = wanted.at(name);
    if (name == spec.parameters[id].name) continue;
    if (sources[id].info == nullptr) {
      sources[id] = source;
    } else {
      aliases.push_back(source);
    }
  }

  std::vector<std::string> missing;
  for (std::size_t id = 0; id < sources.size(); ++id) {
    if (sources[id].info == nullptr) missing.push_back(spec.parameters[id].name);
  }
  if (!missing.empty()) {
    fail(ExitCode::kFiles, "{}: tensor {} is missing, {} wants it{}", path.string(), listed(missing), kConfigFile,
         unknown.empty() ? "" : "; the folder holds " + listed(unknown) + " instead");
  }
  if (!unknown.empty()) {
    log::warning("{}: ignores tensor {}, which this model does not have", path.string(), listed(unknown));
  }
}

void ModelFolder::State::read(const Source& source, std::int64_t first, std::int64_t count, float* to) const {
  const TensorInfo& info = *source.info;
  const Bytes width = size_of(info.dtype);
  // The raw bytes go to the end of the result: widening from the front never overtakes them, and no second large buffer
  // is needed. The small copy lets the compiler see that a block's source and destination are apart.
  auto* bytes = reinterpret_cast<std::byte*>(to) + count * (static_cast<Bytes>(sizeof(float)) - width);
  opened[source.file]->read(info, first * width, std::span(bytes, static_cast<std::size_t>(count * width)));
  if (info.dtype != DType::kF32) {
    constexpr std::int64_t kBlock = 4096;
    std::array<std::byte, kBlock * 2> block;
    for (std::int64_t i = 0; i < count; i += kBlock) {
      const std::int64_t n = std::min(kBlock, count - i);
      std::memcpy(block.data(), bytes + i * width, static_cast<std::size_t>(n * width));
      to_float(info.dtype, block.data(), to + i, n);
    }
  }
  if (const std::int64_t bad = first_non_finite(to, count); bad >= 0) {
    fail(ExitCode::kFiles, "{}: tensor '{}': element {} is {}; weights must be finite", file_of(source), info.name,
         first + bad, to[bad]);
  }
}

void ModelFolder::State::check_aliases(std::int64_t first, std::int64_t count, const float* matrix) const {
  std::vector<float> copy;
  for (const Source& alias : aliases) {
    copy.resize(static_cast<std::size_t>(count));
    read(alias, first, count, copy.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::bit_cast<std::uint32_t>(copy[i]) == std::bit_cast<std::uint32_t>(matrix[i])) continue;
      fail(ExitCode::kFiles,
           "{}: tensor '{}' differs from '{}' at element {} ({} and {}), but the model ties them; set "
           "tie_word_embeddings to false in {} or mend the file",
           file_of(alias), alias.info->name, sources[tied].info->name, first + i, copy[i], matrix[i], kConfigFile);
    }
  }
}

ModelFolder::ModelFolder(Files& files, const fs::path& path, const ModelSpec& spec)
    : state_(std::make_unique<State>(files, path, spec)) {
  state_->open_all();
  state_->match();
}

ModelFolder::~ModelFolder() = default;

DType ModelFolder::dtype() const {
  std::map<DType, std::int64_t> elements;
  for (const Source& source : state_->sources)
    elements[source.info->dtype] += source.info->bytes / size_of(source.info->dtype);
  DType most = DType::kF32;
  for (const auto& [type, count] : elements) {
    if (count > elements[most]) most = type;
  }
  return most;
}

bool ModelFolder::only(DType type) const {
  return std::all_of(state_->sources.begin(), state_->sources.end(),
                     [&](const Source& source) { return source.info->dtype == type; });
}

void ModelFolder::read(Id parameter, std::int64_t first, std::int64_t count, float* to) const {
  state_->read(state_->sources.at(static_cast<std::size_t>(parameter)), first, count, to);
}

void ModelFolder::load(ChunkStore& store) const {
  // In the order of the files, so that a disk reads forward.
  std::vector<Id> order(state_->sources.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Id>(i);
  std::sort(order.begin(), order.end(), [&](Id a, Id b) {
    const Source &x = state_->sources[a], &y = state_->sources[b];
    return std::pair(x.file, x.info->offset) < std::pair(y.file, y.info->offset);
  });
  PieceTeam team;
  std::vector<std::vector<float>> values(team.slots());
  team.run(
      cut_pieces(state_->spec, order),
      [&](const Piece& piece, std::size_t slot) {
        values[slot].resize(static_cast<std::size_t>(piece.count));
        read(piece.parameter, piece.first, piece.count, values[slot].data());
        if (piece.parameter == state_->tied) state_->check_aliases(piece.first, piece.count, values[slot].data());
      },
      [&](const Piece& piece, std::size_t slot) {
        store.write_master(piece.parameter, piece.first, piece.count, values[slot].data(), &team.pool());
      });
}

std::string ModelFolder::config_json() const { return state_->files.read_text(state_->path / kConfigFile); }

}  // namespace protrain
