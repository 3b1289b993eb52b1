#include "checkpoint/training_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/commit_mark.h"
#include "checkpoint/convert.h"
#include "checkpoint/digest_files.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/json_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/target_folder.h"
#include "optimizer/adamw.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

// What an element of a state file holds.
enum class Content : std::uint8_t { kFirstMoment, kSecondMoment, kResidual, kMaster };

struct StateFile {
  Content content;
  const char* name;
  DType dtype;
};
constexpr StateFile kFirstMoment = {Content::kFirstMoment, kFirstMomentFile, DType::kF32};
constexpr StateFile kSecondMoment = {Content::kSecondMoment, kSecondMomentFile, DType::kF32};
constexpr StateFile kResidual = {Content::kResidual, kResidualFile, DType::kI16};
constexpr StateFile kMaster = {Content::kMaster, kMasterFile, DType::kF32};

// The least that makes the model's files plus one more an exact copy of the masters.
MasterForm master_form(DType compute, DType exported) {
  if (exported == DType::kF32) return MasterForm::kModel;
  if (exported == DType::kBf16 && compute == DType::kBf16) return MasterForm::kResidual;
  return MasterForm::kMaster;
}

// Index of the first element that must not be in a checkpoint; -1 when there is none.
std::int64_t first_bad(Content content, const std::vector<std::byte>& bytes, std::int64_t count) {
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  switch (content) {
    case Content::kFirstMoment:
    case Content::kMaster: return first_non_finite(values, count);
    case Content::kSecondMoment: return first_non_finite_or_negative(values, count);
    case Content::kResidual: return -1;
  }
  return -1;
}

float value_at(const std::vector<std::byte>& bytes, std::int64_t index) {
  return reinterpret_cast<const float*>(bytes.data())[index];
}

void read_state(const ChunkStore& store, Id id, Content content, std::int64_t first, std::int64_t count,
                std::byte* to) {
  switch (content) {
    case Content::kFirstMoment: return store.read(id, Part::kM, first, count, to);
    case Content::kSecondMoment: return store.read(id, Part::kV, first, count, to);
    case Content::kResidual: return store.read(id, Part::kResidual, first, count, to);
    case Content::kMaster: return store.read_master(id, first, count, reinterpret_cast<float*>(to));
  }
}

template <typename Visit>
void for_each_piece(const ModelSpec& spec, Visit visit) {
  for (std::size_t id = 0; id < spec.parameters.size(); ++id) {
    const std::int64_t elements = spec.parameters[id].elements();
    for (std::int64_t first = 0; first < elements; first += kPieceElements) {
      visit(static_cast<Id>(id), first, std::min(kPieceElements, elements - first));
    }
  }
}

void write_state_file(Files& files, const ChunkStore& store, const StateFile& file, const fs::path& folder) {
  std::vector<TensorInfo> tensors;
  for (const ParameterSpec& parameter : store.spec().parameters) {
    tensors.push_back({.name = parameter.name, .dtype = file.dtype, .shape = parameter.shape});
  }
  SafetensorsWriter writer(files, folder / file.name, std::move(tensors), {});
  std::vector<std::byte> piece;
  for_each_piece(store.spec(), [&](Id id, std::int64_t first, std::int64_t count) {
    piece.resize(static_cast<std::size_t>(count * size_of(file.dtype)));
    read_state(store, id, file.content, first, count, piece.data());
    if (const std::int64_t bad = first_bad(file.content, piece, count); bad >= 0) {
      fail(ExitCode::kNonFinite, "{}: tensor '{}': element {} is {}", file.name, store.spec().parameters[id].name,
           first + bad, value_at(piece, bad));
    }
    writer.append(piece);
  });
  writer.finish(true);
}

// A state file with every parameter checked before anything is read.
class StateReader {
 public:
  StateReader(Files& files, const StateFile& file, const fs::path& folder, const ModelSpec& spec)
      : file_(file), tensors_(files, folder / file.name) {
    for (const ParameterSpec& parameter : spec.parameters) {
      const TensorInfo* info = tensors_.find(parameter.name);
      const std::string path = tensors_.path().string();
      if (info == nullptr) fail(ExitCode::kFiles, "{}: tensor '{}' is missing", path, parameter.name);
      if (info->dtype != file.dtype || info->shape != parameter.shape) {
        fail(ExitCode::kFiles, "{}: tensor '{}' is {} [{}], must be {} [{}]", path, parameter.name,
             safetensors_name(info->dtype), fmt::join(info->shape, ", "), safetensors_name(file.dtype),
             fmt::join(parameter.shape, ", "));
      }
      by_parameter_.push_back(info);
    }
    if (tensors_.tensors().size() != by_parameter_.size()) {
      fail(ExitCode::kFiles, "{}: holds {} tensors, the model has {}", tensors_.path().string(),
           tensors_.tensors().size(), by_parameter_.size());
    }
  }

  // Until the next call.
  const std::vector<std::byte>& read(Id id, std::int64_t first, std::int64_t count) {
    const TensorInfo& info = *by_parameter_[id];
    piece_.resize(static_cast<std::size_t>(count * size_of(file_.dtype)));
    tensors_.read(info, first * size_of(file_.dtype), piece_);
    if (const std::int64_t bad = first_bad(file_.content, piece_, count); bad >= 0) {
      fail(ExitCode::kFiles, "{}: tensor '{}': element {} is {}, must be finite{}", tensors_.path().string(), info.name,
           first + bad, value_at(piece_, bad), file_.content == Content::kSecondMoment ? " and not negative" : "");
    }
    return piece_;
  }

 private:
  StateFile file_;
  SafetensorsFile tensors_;
  std::vector<const TensorInfo*> by_parameter_;
  std::vector<std::byte> piece_;
};

// Both halves as they were saved; a store that computes in fp32 gets their sum.
void restore_split(ChunkStore& store, Id id, std::int64_t first, const std::vector<float>& weights,
                   const std::vector<std::byte>& residual_bytes) {
  const auto count = static_cast<std::int64_t>(weights.size());
  std::vector<std::uint16_t> bits(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    bits[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weights[i]) >> 16);
  }
  if (store.compute() == DType::kBf16) {
    store.write(id, Part::kWeight, first, count, reinterpret_cast<const std::byte*>(bits.data()));
    store.write(id, Part::kResidual, first, count, residual_bytes.data());
    return;
  }
  std::vector<float> masters(weights.size());
  join_masters(bits.data(), reinterpret_cast<const std::int16_t*>(residual_bytes.data()), masters.data(), count);
  store.write_master(id, first, count, masters.data());
}

void write_all(Files& real, const ChunkStore& store, const TrainingState& state, const std::string& config_json,
               const std::optional<fs::path>& source, const fs::path& folder, const SaveOptions& options) {
  DigestingFiles digesting(real, folder);
  Files& files = digesting;
  ExportOptions model = options.model;
  model.sync = true;
  export_model(files, store, config_json, source, folder, model);
  const MasterForm form = options.model_only ? MasterForm::kNone : master_form(store.compute(), model.dtype);
  if (form == MasterForm::kResidual) write_state_file(files, store, kResidual, folder);
  if (form == MasterForm::kMaster) write_state_file(files, store, kMaster, folder);
  if (form != MasterForm::kNone) {
    write_state_file(files, store, kFirstMoment, folder);
    write_state_file(files, store, kSecondMoment, folder);
  }
  const TrainerState trainer{.state = state, .compute = store.compute(), .master = form};
  files.write_text(folder / kTrainerStateFile, trainer_state_text(trainer), true);
  write_commit_mark(files, folder, digesting.digests());
}

// Fills the store with what a complete checkpoint holds.
TrainingState restore(Files& files, const fs::path& folder, ChunkStore& store) {
  const ModelSpec& spec = store.spec();
  const std::string state_path = (folder / kTrainerStateFile).string();
  TrainerState trainer = parse_trainer_state(files.read_text(state_path), state_path);

  if (trainer.master == MasterForm::kNone) {
    fail(ExitCode::kFiles,
         "{}: holds the model alone (save_only_model), without the optimizer's state: it cannot be resumed from; give "
         "it "
         "as model_name_or_path to start a new run from it",
         folder.string());
  }
  const ModelFolder model(files, folder, spec);
  StateReader first_moment(files, kFirstMoment, folder, spec), second_moment(files, kSecondMoment, folder, spec);
  std::optional<StateReader> master;
  if (trainer.master == MasterForm::kResidual) master.emplace(files, kResidual, folder, spec);
  if (trainer.master == MasterForm::kMaster) master.emplace(files, kMaster, folder, spec);
  const DType wanted = trainer.master == MasterForm::kModel ? DType::kF32 : DType::kBf16;
  if (trainer.master != MasterForm::kMaster && !model.only(wanted)) {
    fail(ExitCode::kFiles, "{}: the model's tensors must all be {} to go with {}", folder.string(),
         safetensors_name(wanted), kTrainerStateFile);
  }

  std::vector<float> weights;
  for_each_piece(spec, [&](Id id, std::int64_t first, std::int64_t count) {
    weights.resize(static_cast<std::size_t>(count));
    if (trainer.master == MasterForm::kMaster) {
      const std::vector<std::byte>& bytes = master->read(id, first, count);
      store.write_master(id, first, count, reinterpret_cast<const float*>(bytes.data()));
    } else {
      model.read(id, first, count, weights.data());
      if (trainer.master == MasterForm::kResidual) {
        restore_split(store, id, first, weights, master->read(id, first, count));
      } else {
        store.write_master(id, first, count, weights.data());
      }
    }
  });
  // File after file, so that a disk reads forward.
  for_each_piece(spec, [&](Id id, std::int64_t first, std::int64_t count) {
    store.write(id, Part::kM, first, count, first_moment.read(id, first, count).data());
  });
  for_each_piece(spec, [&](Id id, std::int64_t first, std::int64_t count) {
    store.write(id, Part::kV, first, count, second_moment.read(id, first, count).data());
  });
  return std::move(trainer.state);
}

bool resumable(Files& files, const fs::path& committed) {
  return committed_files(files, committed).contains(kFirstMomentFile);
}

// All but the `keep_last` newest; the one just saved always stays, and so does the newest that can be resumed from. The
// save is committed, so a failure here costs only space.
void remove_old(Files& files, const fs::path& output_dir, std::int64_t saved, int keep_last) try {
  std::vector<std::int64_t> others = committed_steps(files, output_dir);
  std::erase(others, saved);
  if (!resumable(files, checkpoint_path(output_dir, saved))) {
    const auto found = std::find_if(others.rbegin(), others.rend(), [&](std::int64_t step) {
      const std::optional<fs::path> folder = committed_folder(files, checkpoint_path(output_dir, step));
      return folder && resumable(files, *folder);
    });
    if (found != others.rend()) std::erase(others, *found);
  }
  const auto stay = static_cast<std::size_t>(keep_last) - 1;
  for (std::size_t i = 0; i + stay < others.size(); ++i) remove_checkpoint(files, output_dir, others[i]);
} catch (const Error& error) {
  log::warning("an older checkpoint could not be removed: {}", error.what());
}

}  // namespace

fs::path save_checkpoint(Files& files, const ChunkStore& store, const TrainingState& state,
                         const std::string& config_json, const std::optional<fs::path>& source,
                         const fs::path& output_dir, const SaveOptions& options) {
  try {
    make_synced_folder(files, output_dir);
    settle(files, output_dir);
    const fs::path partial = make_partial(files, output_dir, state.step);
    write_all(files, store, state, config_json, source, partial, options);
    promote(files, output_dir, state.step);
  } catch (const Error& error) {
    std::string kept = "there is no earlier one";
    try {
      drop_partial(files, output_dir, state.step);
      if (const auto newest = newest_checkpoint(files, output_dir)) kept = newest->string() + " is kept";
    } catch (const Error&) {
      kept = "earlier ones are kept";
    }
    fail(error.code(), "{} was not saved: {}; {}", checkpoint_path(output_dir, state.step).string(), error.what(),
         kept);
  }
  if (options.keep_last > 0) remove_old(files, output_dir, state.step, options.keep_last);
  return checkpoint_path(output_dir, state.step);
}

std::optional<fs::path> newest_checkpoint(Files& files, const fs::path& output_dir) {
  const std::vector<std::int64_t> steps = committed_steps(files, output_dir);
  if (steps.empty()) return std::nullopt;
  return committed_folder(files, checkpoint_path(output_dir, steps.back()));
}

FoundCheckpoints find_checkpoints(Files& files, const fs::path& output_dir) {
  FoundCheckpoints found;
  std::vector<fs::path> models;  // without the optimizer's state
  const std::vector<std::int64_t> steps = committed_steps(files, output_dir);
  std::int64_t newest = steps.empty() ? -1 : steps.back();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    std::optional<fs::path> folder = committed_folder(files, checkpoint_path(output_dir, *step));
    if (!folder) continue;
    const bool whole = resumable(files, *folder);
    if (whole && found.complete.empty()) newest = *step;
    (whole ? found.complete : models).push_back(*std::move(folder));
  }
  if (found.complete.empty()) found.complete = std::move(models);
  const std::vector<std::int64_t> named = named_steps(files, output_dir);
  for (auto step = named.rbegin(); step != named.rend() && *step > newest; ++step) {
    const fs::path checkpoint = checkpoint_path(output_dir, *step);
    const CommitCheck check = check_commit(files, checkpoint);
    const bool model = check.commit == Commit::kWhole;
    found.faults.push_back(model ? checkpoint.string() + " holds the model alone (save_only_model)" : check.fault);
  }
  return found;
}

void remove_checkpoints(Files& files, const fs::path& output_dir) {
  if (!files.exists(output_dir)) return;
  settle(files, output_dir);
  for (const std::int64_t step : committed_steps(files, output_dir)) remove_checkpoint(files, output_dir, step);
}

namespace {

// Of a checkpoint that is there with a valid mark.
fs::path complete_folder(Files& files, const fs::path& checkpoint) {
  if (std::optional<fs::path> folder = committed_folder(files, checkpoint)) return *std::move(folder);
  if (!files.exists(checkpoint)) fail(ExitCode::kFiles, "{}: no such checkpoint", checkpoint.string());
  throw DamagedCheckpoint(
      fmt::format("{}: not a complete checkpoint: {}", checkpoint.string(), check_commit(files, checkpoint).fault));
}

}  // namespace

void check_complete(Files& files, const fs::path& checkpoint) { complete_folder(files, checkpoint); }

TrainingState load_checkpoint(Files& files, const fs::path& checkpoint, ChunkStore& store) {
  const fs::path folder = complete_folder(files, checkpoint);
  VerifyingFiles verifying(files, folder, committed_files(files, folder));
  TrainingState state;
  try {
    state = restore(verifying, folder, store);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kFiles) throw;
    // Whatever seems wrong, changed bytes explain it better.
    if (const std::string fault = verifying.fault(); !fault.empty()) {
      throw DamagedCheckpoint(fmt::format("{} ({})", fault, error.what()));
    }
    throw;
  }
  if (const std::string fault = verifying.fault(); !fault.empty()) throw DamagedCheckpoint(fault);
  return state;
}

std::vector<fs::path> set_aside_after(Files& files, const fs::path& output_dir, std::int64_t step) {
  std::vector<fs::path> kept;
  if (!files.exists(output_dir)) return kept;
  settle(files, output_dir);
  // The newest first: after a death on the way, those that still count are the nearest to `step`.
  std::vector<std::int64_t> steps = named_steps(files, output_dir);
  for (auto at = steps.rbegin(); at != steps.rend() && *at > step; ++at) {
    kept.push_back(set_aside(files, output_dir, *at));
  }
  if (!kept.empty()) files.sync_directory(output_dir);
  return kept;
}

}  // namespace protrain
