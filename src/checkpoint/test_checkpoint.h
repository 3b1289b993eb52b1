// For the tests of whole training checkpoints: saves and loads in a folder of their own.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/test_store.h"
#include "checkpoint/training_checkpoint.h"

namespace protrain {

template <typename Fn>
std::string warnings_of(Fn fn) {
  std::string warnings;
  log::set_sink([&](log::Level, const std::string& line) { warnings += line + "\n"; });
  fn();
  log::set_sink({});
  return warnings;
}

class TrainingCheckpoint : public testing::Test {
 protected:
  std::filesystem::path save(TestStore& store, std::int64_t step, int keep_last = 0, DType dtype = DType::kBf16,
                             Files& files = real_files(), bool model_only = false) {
    SaveOptions options;
    options.keep_last = keep_last;
    options.model_only = model_only;
    options.model.dtype = dtype;
    const TrainingState state{
        .step = step, .applied_updates = step - 1, .data_fingerprint = ~std::uint64_t{5}, .extra_json = kExtra};
    return save_checkpoint(files, *store, state, kConfig, {}, folder_.path(), options);
  }
  std::filesystem::path save_model(TestStore& store, std::int64_t step, int keep_last) {
    return save(store, step, keep_last, DType::kBf16, real_files(), true);
  }
  TrainingState load(const std::filesystem::path& path, TestStore& store) {
    return load_checkpoint(real_files(), path, *store);
  }
  std::string load_fault(const std::filesystem::path& path, const ModelSpec& spec = test_spec(false)) {
    TestStore store(spec, DType::kBf16);
    return error_of(ExitCode::kFiles, [&] { load(path, store); });
  }
  std::vector<std::string> names() { return real_files().list(folder_.path()); }

  static constexpr const char* kConfig = R"({"model_type": "llama"})";
  static constexpr const char* kExtra = R"({"loss":0.1234567890123456789,"list":[1,{"b":2,"a":null}]})";
  TemporaryFolder folder_;
};

}  // namespace protrain
