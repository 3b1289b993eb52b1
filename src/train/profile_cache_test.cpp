#include "train/profile_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/faulty_files.h"
#include "base/log.h"
#include "train/profile_text.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A value of an environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

class ProfileCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("profiles-" + std::to_string(getpid()));
    log::set_sink([this](log::Level, const std::string& line) { lines_.push_back(line); });
  }
  void TearDown() override {
    log::set_sink({});
    fs::remove_all(folder_);
  }

  static StoredProfile profile(const std::string& key) {
    StoredProfile profile;
    profile.key = key;
    profile.machine = "a machine";
    const CallKey call{"head", Pass::kBackward, false, {2, 16, 2, false}, true};
    profile.memory.calls = {{call, {0, 4096, 3072}}};
    profile.rates.source = "a machine, measured";
    profile.rates.measured = true;
    profile.rates.calls = {{call, 3e-3, 2e-3}};
    for (Rates::Linear* rate : {&profile.rates.h2d, &profile.rates.d2h, &profile.rates.cpu_update,
                                &profile.rates.gpu_update, &profile.rates.norm, &profile.rates.round}) {
      *rate = {1e-6, 1e-9};
    }
    return profile;
  }

  fs::path folder_;
  std::vector<std::string> lines_;
};

TEST_F(ProfileCacheTest, WhatIsKeptComesBack) {
  EXPECT_FALSE(load_profile(real_files(), folder_, "k1"));
  keep_profile(real_files(), folder_, profile("k1"));
  const auto back = load_profile(real_files(), folder_, "k1");
  ASSERT_TRUE(back);
  EXPECT_EQ(profile_json(*back), profile_json(profile("k1")));
  EXPECT_FALSE(load_profile(real_files(), folder_, "k2"));
  EXPECT_THAT(real_files().list(folder_), ElementsAre("k1.json"));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(ProfileCacheTest, ABrokenOrForeignFileIsNamedAndNotUsed) {
  keep_profile(real_files(), folder_, profile("k1"));
  fs::rename(folder_ / "k1.json", folder_ / "k2.json");
  EXPECT_FALSE(load_profile(real_files(), folder_, "k2"));
  real_files().write_text(folder_ / "k3.json", profile_json(profile("k3")).substr(0, 200), false);
  EXPECT_FALSE(load_profile(real_files(), folder_, "k3"));
  fs::create_directory(folder_ / "k4.json");
  EXPECT_FALSE(load_profile(real_files(), folder_, "k4"));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("k2.json"), HasSubstr("k3.json"), HasSubstr("k4.json")));
}

TEST_F(ProfileCacheTest, AFolderThatCannotBeWrittenIsAWarning) {
  fs::create_directories(folder_);
  real_files().write_text(folder_ / "file", "", false);
  keep_profile(real_files(), folder_ / "file" / "profiles", profile("k1"));
  keep_profile(real_files(), "", profile("k1"));
  ASSERT_EQ(lines_.size(), 2U);
  for (const std::string& line : lines_) EXPECT_THAT(line, HasSubstr("is not kept"));
}

TEST_F(ProfileCacheTest, AFullDiskIsAWarningAndLeavesNoHalfFile) {
  FaultyFiles counting(real_files(), {});
  keep_profile(counting, folder_, profile("k1"));
  for (std::int64_t at = 1; at <= counting.operations(); ++at) {
    fs::remove_all(folder_);
    lines_.clear();
    FaultyFiles full(real_files(), {.kind = FileFaultKind::kNoSpace, .at = at});
    keep_profile(full, folder_, profile("k1"));
    EXPECT_THAT(lines_, ElementsAre(HasSubstr("is not kept"))) << "operation " << at;
    EXPECT_TRUE(!fs::exists(folder_) || fs::is_empty(folder_)) << "operation " << at;
  }
}

TEST_F(ProfileCacheTest, TheFolderIsThatOfTheFirstVariableThatIsSet) {
  const Variable home("HOME", "/home/me");
  {
    const Variable xdg("XDG_CACHE_HOME", "/xdg"), own("PROTRAIN_CACHE", "/own");
    EXPECT_EQ(profile_folder(), "/own/profiles");
    const Variable unset("PROTRAIN_CACHE", nullptr);
    EXPECT_EQ(profile_folder(), "/xdg/protrain/profiles");
    const Variable empty("XDG_CACHE_HOME", "");
    EXPECT_EQ(profile_folder(), "/home/me/.cache/protrain/profiles");
    const Variable homeless("HOME", nullptr);
    EXPECT_EQ(profile_folder(), "");
  }
}

TEST(ProfileOfADevice, SaysWhatKindItWas) {
  StoredProfile profile;
  EXPECT_EQ(device_of(profile), std::nullopt);
  profile.machine = machine_name(*make_cpu_device());
  EXPECT_EQ(device_of(profile), DeviceKind::kCpu);
  EXPECT_THAT(profile.machine, HasSubstr(make_cpu_device()->name()));
  profile.machine = "GPU: NVIDIA H200";
  EXPECT_EQ(device_of(profile), DeviceKind::kCuda);
}

TEST(ProfileText, FlopsOfABlocksCallsAddUpToTheModels) {
  const ModelSpec spec = make_spec(parse_architecture(
      R"({"model_type": "llama", "vocab_size": 5003, "hidden_size": 256, "intermediate_size": 640,
          "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2})",
      "config.json"));
  const BatchShape shape{2, 128, 2, false};
  double flops = 0;
  for (const BlockSpec& block : spec.blocks) {
    flops += call_flops(spec, {block.trace, Pass::kBackward, false, shape, true});
    if (block.kind == BlockKind::kLayer)
      flops += call_flops(spec, {block.trace, Pass::kForwardKeep, true, shape, true});
  }
  const double model = spec.flops_per_token(128) * static_cast<double>(shape.tokens());
  EXPECT_NEAR(flops / model, 1, 2e-3);  // norms
}

}  // namespace
}  // namespace protrain
