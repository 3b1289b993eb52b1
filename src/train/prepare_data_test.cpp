// Where prepared data comes from and what is done about files that cannot be used. A shell script stands for the Python
// part: it copies a good file to its --output.
#include "train/prepare_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/test_support.h"
#include "train/data_sources.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::int64_t kVocabulary = 100;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
}

// Opens of paths that hold `unreadable` fail as those of another user's files do; tests may run as root.
class PartlyUnreadable : public Files {
 public:
  explicit PartlyUnreadable(std::string unreadable) : unreadable_(std::move(unreadable)) {}
  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    if (path.string().find(unreadable_) != std::string::npos) {
      fail(ExitCode::kFiles, "cannot open {}: Permission denied", path.string());
    }
    return real_files().open(path);
  }
  std::unique_ptr<WritableFile> create(const fs::path& path) override { return real_files().create(path); }
  bool exists(const fs::path& path) override { return real_files().exists(path); }
  void make_directories(const fs::path& path) override { real_files().make_directories(path); }
  std::vector<std::string> list(const fs::path& path) override { return real_files().list(path); }
  void rename(const fs::path& from, const fs::path& to) override { real_files().rename(from, to); }
  void remove_all(const fs::path& path) override { real_files().remove_all(path); }
  void sync_directory(const fs::path& path) override { real_files().sync_directory(path); }

 private:
  const std::string unreadable_;
};

class PrepareDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "prepare_data_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directory(folder_ / "model");
    write(folder_ / "model" / "tokenizer.json", "{}");
    write(folder_ / "data.jsonl", "{}\n");
    good_ = test::ptk_file({{{1, 2, 3}, {true, true, true}}, {{4, 99}, {true, true}}}, kVocabulary, 2);
    test::seal_ptk_body(&good_);
    write(folder_ / "good", good_);
    set_python("cp \"$FOLDER/good\" \"$output\"");
    setenv("FOLDER", folder_.c_str(), 1);
    config_.model_name_or_path = (folder_ / "model").string();
    config_.dataset_prepared_path = (folder_ / "cache").string();
    config_.train_file = {(folder_ / "data.jsonl").string()};
    spec_.vocabulary = kVocabulary;
    log::set_sink([this](log::Level, const std::string& line) { lines_.push_back(line); });
  }

  void TearDown() override {
    log::set_sink({});
    unsetenv("PROTRAIN_PYTHON");
    unsetenv("FOLDER");
    fs::remove_all(folder_);
  }

  void set_python(const std::string& action) {
    const fs::path script = folder_ / "python";
    write(script,
          "#!/bin/sh\necho \"$@\" >>\"$FOLDER/calls\"\n"
          "while [ $# -gt 0 ]; do [ \"$1\" = --output ] && output=$2; shift; done\n" +
              action + "\n");
    chmod(script.c_str(), 0755);
    setenv("PROTRAIN_PYTHON", script.c_str(), 1);
  }

  DataSources open(Files& files = real_files()) { return open_data(files, config_, spec_); }

  // The message of the Error(kData) that opening ends with.
  std::string refusal(Files& files = real_files()) {
    try {
      open(files);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "not refused";
    return {};
  }

  std::vector<std::string> calls() {
    std::vector<std::string> out;
    std::ifstream in(folder_ / "calls");
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }

  fs::path folder_;
  std::string good_;
  TrainConfig config_;
  ModelSpec spec_;
  std::vector<std::string> lines_;
};

TEST_F(PrepareDataTest, RawDataIsPreparedOnceForAModelsVocabulary) {
  const std::string path = open().train_file;
  EXPECT_EQ(read(path), good_);
  EXPECT_EQ(open().train_file, path);
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("--vocabulary 100")));
  spec_.vocabulary = 200;
  EXPECT_NE(open().train_file, path);
  EXPECT_THAT(calls(), ElementsAre(HasSubstr("--vocabulary 100"), HasSubstr("--vocabulary 200")));
}

TEST_F(PrepareDataTest, WhateverShapesTokensIsInTheKey) {
  std::string last = open().train_file;
  fs::create_directory(folder_ / "model" / "additional_chat_templates");
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "sentencepiece.bpe.model", "spiece.model",
        "qwen.tiktoken", "vocab.json", "vocab.txt", "merges.txt", "bpe.codes", "chat_template.jinja",
        "special_tokens_map.json", "added_tokens.json", "additional_chat_templates/default.jinja"}) {
    for (const char* content : {"one", "two"}) {
      write(folder_ / "model" / name, content);
      const std::string now = open().train_file;
      EXPECT_NE(now, last) << name << " " << content;
      last = now;
    }
  }
  for (const char* name : {"model.safetensors", "trainer_state.json", "README.md"}) {
    write(folder_ / "model" / name, "one");
    EXPECT_EQ(open().train_file, last) << name;
  }
}

TEST_F(PrepareDataTest, TheLibrariesOfThePythonAreInTheKey) {
  const fs::path packages = folder_ / "environment[1]" / "lib" / "python3.12" / "site-packages";
  fs::create_directories(packages.parent_path().parent_path().parent_path() / "bin");
  fs::create_directories(packages / "tokenizers-0.1.dist-info");
  const fs::path python = folder_ / "environment[1]" / "bin" / "python";
  fs::copy_file(folder_ / "python", python);
  setenv("PROTRAIN_PYTHON", python.c_str(), 1);
  std::string last = open().train_file;
  EXPECT_EQ(open().train_file, last);
  const auto renewed = [&] { return std::exchange(last, open().train_file) != last; };
  fs::create_directory(packages / "transformers-5.1.dist-info");
  EXPECT_TRUE(renewed());
  fs::rename(packages / "transformers-5.1.dist-info", packages / "transformers-5.2.dist-info");
  EXPECT_TRUE(renewed());
  fs::create_directory(packages / "transformers_more-1.dist-info");
  EXPECT_FALSE(renewed());
}

TEST_F(PrepareDataTest, ATokenizerIsGivenWhereThePythonPartFindsOne) {
  const auto given = [&](const char* name) {
    fs::remove_all(folder_ / "model");
    fs::create_directory(folder_ / "model");
    write(folder_ / "model" / name, name);
    open();
    return calls().back().find("--tokenizer=") != std::string::npos;
  };
  for (const char* name :
       {"tokenizer.json", "vocab.json", "vocab.txt", "sentencepiece.bpe.model", "qwen.tiktoken", "tokenizer.model"}) {
    EXPECT_TRUE(given(name)) << name;
  }
  for (const char* name : {"tokenizer_config.json", "config.json", "model.safetensors"}) {
    EXPECT_FALSE(given(name)) << name;
  }
}

TEST_F(PrepareDataTest, ATokenizerThatCannotBeLookedAtIsRefused) {
  const auto fault = [&](ExitCode code) -> std::string {
    try {
      open();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "not refused";
  };
  fs::create_symlink("loop", folder_ / "loop");
  const std::map<std::string, std::string> faults = {
      {(folder_ / "loop").string(), "Too many levels of symbolic links, so there is no tokenizer"},
      {(folder_ / std::string(5000, 'a')).string(), "File name too long, so there is no tokenizer"},
      {(folder_ / "absent").string(), "is not a folder, so there is no tokenizer"},
  };
  for (const auto& [folder, text] : faults) {
    config_.tokenizer_name = folder;
    EXPECT_THAT(fault(ExitCode::kConfig), AllOf(HasSubstr(folder), HasSubstr(text)));
    EXPECT_EQ(find_prepared(real_files(), config_, config_.train_file, "train_file", kVocabulary), std::nullopt);
  }
  config_.tokenizer_name.clear();
  fs::create_symlink("merges.txt", folder_ / "model" / "merges.txt");
  EXPECT_THAT(fault(ExitCode::kFiles), HasSubstr("merges.txt: Too many levels of symbolic links"));
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(PrepareDataTest, TwoStarsAreAnyNumberOfFolders) {
  const fs::path top = folder_ / "tree";
  for (const char* name : {"a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/d.txt", "odd[1]/e.jsonl", ".hidden/f.jsonl",
                           "x/.g.jsonl", "b.jsonl/h.jsonl"}) {
    fs::create_directories((top / name).parent_path());
    write(top / name, "");
  }
  fs::create_directory_symlink("..", top / "x" / "up");  // would never end
  const auto found = [&](const std::string& pattern) {
    std::vector<std::string> names;
    for (const fs::path& path : expand_patterns({(top / pattern).string()}, "train_file")) {
      names.push_back(path.lexically_relative(top).string());
    }
    return names;
  };
  const auto all = ElementsAre("a.jsonl", "b.jsonl/h.jsonl", "odd[1]/e.jsonl", "x/b.jsonl", "x/y/c.jsonl");
  EXPECT_THAT(found("**/*.jsonl"), all);
  EXPECT_THAT(found("**/**/*.jsonl"), all);
  EXPECT_THAT(found("x/**"), ElementsAre("x/b.jsonl", "x/y/c.jsonl", "x/y/d.txt"));
  EXPECT_THAT(found("*/**/y/*.txt"), ElementsAre("x/y/d.txt"));
  EXPECT_THAT(found("**/x/**/c.jsonl"), ElementsAre("x/y/c.jsonl"));
  EXPECT_THROW(found("**/none*"), Error);
  const fs::path before = fs::current_path();
  fs::current_path(top);
  EXPECT_THAT(expand_patterns({"**/c.jsonl", "x/**/*.txt"}, "train_file"), ElementsAre("x/y/c.jsonl", "x/y/d.txt"));
  fs::current_path(before);
}

TEST_F(PrepareDataTest, AnEndTokenMustBeOfTheModelAndHasNoEffectOnPreparedSamples) {
  config_.given["end_token"] = "run.yaml:7";
  config_.end_token = spec_.vocabulary - 1;
  open();
  EXPECT_THAT(lines_, testing::Contains(HasSubstr("end_token (run.yaml:7): 99 has no effect")));
  config_.end_token = spec_.vocabulary;
  try {
    open();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("its vocabulary has 100"));
  }
}

TEST_F(PrepareDataTest, ThePreparingProcessKnowsItsCaller) {
  set_python("echo \"$PROTRAIN_CALLER\" >\"$FOLDER/caller\"; cp \"$FOLDER/good\" \"$output\"");
  open();
  EXPECT_EQ(read(folder_ / "caller"), std::to_string(getpid()) + "\n");
}

TEST_F(PrepareDataTest, ADamagedCachedFileIsMadeAnewWithAWordAboutIt) {
  const fs::path cached = open().train_file;
  const std::map<std::string, std::function<void()>> damages = {
      {"cut off", [&] { fs::resize_file(cached, good_.size() - 5); }},
      {"empty", [&] { fs::resize_file(cached, 0); }},
      {"header", [&] { write(cached, std::string(good_).replace(24, 1, "\xff")); }},
      {"magic", [&] { write(cached, std::string(good_).replace(0, 1, "x")); }},
      {"id beyond the vocabulary", [&] { write(cached, std::string(good_).replace(128, 1, "\xf0")); }},
      {"another id of the vocabulary", [&] { write(cached, std::string(good_).replace(128, 1, "\x07")); }},
      {"mask", [&] { write(cached, std::string(good_).replace(256, 1, "\x01")); }},
      {"no sample", [&] { write(cached, test::ptk_file({}, kVocabulary, 2)); }},
  };
  std::size_t made = 1;
  for (const auto& [damage, make] : damages) {
    make();
    lines_.clear();
    EXPECT_EQ(open().train_file, cached) << damage;
    EXPECT_EQ(read(cached), good_) << damage;
    EXPECT_EQ(calls().size(), ++made) << damage;
    EXPECT_THAT(lines_, Contains(AllOf(StartsWith("train_file: the cached file is damaged and is made anew ("),
                                       HasSubstr(cached.string()))))
        << damage;
  }
}

TEST_F(PrepareDataTest, AnUnreadableCachedFileIsMadeAnewAndRefusedIfThatDoesNotHelp) {
  const fs::path cached = open().train_file;
  PartlyUnreadable files(cached.string());
  EXPECT_THAT(refusal(files), HasSubstr(cached.string() + ": Permission denied"));
  EXPECT_EQ(calls().size(), 2u);
}

TEST_F(PrepareDataTest, ADamagedFileThatTheUserNamedIsRefusedAndLeftAlone) {
  const fs::path path = folder_ / "own.ptk";
  config_.train_file = {path.string()};
  const std::string wide = test::ptk_file({{{1, 200}, {true, true}}, {{3, 4, 150}, {true, true, true}}}, 0, 2);
  for (const std::string& content : {good_.substr(0, good_.size() - 1), std::string(good_).replace(24, 1, "\xff"),
                                     std::string(good_).replace(0, 1, "x"), good_.substr(0, 50), std::string(),
                                     test::ptk_file({}, kVocabulary, 2), wide}) {
    write(path, content);
    EXPECT_THAT(refusal(), HasSubstr(path.string()));
    EXPECT_EQ(read(path), content);
  }
  write(path, test::ptk_file({{{1, 2}, {true, true}}, {{3, 4, 150}, {true, true, true}}}, 0, 2));
  EXPECT_THAT(refusal(), HasSubstr("own.ptk: token 4 (number 2 of sample 1, from 0) has id 150"));
  config_.train_file = {(folder_ / "own.bin").string()};
  for (const std::string& content : {test::llmc_file({1, 2, 3}, false).substr(0, 1026), std::string(2000, 'x')}) {
    write(folder_ / "own.bin", content);
    EXPECT_THAT(refusal(), HasSubstr("own.bin"));
  }
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(PrepareDataTest, DataThatCannotBeReadIsADataFaultThatNamesIt) {
  fs::create_directory(folder_ / "folder.ptk");
  ASSERT_EQ(mkfifo((folder_ / "pipe.bin").c_str(), 0600), 0);
  write(folder_ / "secret.ptk", good_);
  write(folder_ / "secret.bin", test::llmc_file({1, 2, 3}, false));
  write(folder_ / "secret.jsonl", "{}\n");
  PartlyUnreadable files("secret");
  for (const char* name :
       {"folder.ptk", "pipe.bin", "secret.ptk", "secret.bin", "secret.jsonl", "absent.ptk", "x*.jsonl"}) {
    const std::string path = (folder_ / name).string();
    config_.train_file = {path};
    EXPECT_THAT(refusal(files), HasSubstr(path)) << name;
    config_.train_file = {(folder_ / "data.jsonl").string()};
    config_.validation_file = {path};
    EXPECT_THAT(refusal(files), HasSubstr(path)) << name;
    config_.validation_file.clear();
  }
  config_.train_file = {(folder_ / "data.jsonl" / "below").string()};
  EXPECT_THAT(refusal(), HasSubstr("data.jsonl/below"));
}

TEST_F(PrepareDataTest, ACacheThatCannotBeMadeIsNamed) {
  write(folder_ / "cache", "a file");
  EXPECT_THAT(refusal(), HasSubstr((folder_ / "cache").string()));
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(PrepareDataTest, TheMessageOfAFailedPreparationIsTheError) {
  set_python("echo 'a word before'; echo 'protrain prepare: data.jsonl:7: no good' >&2; exit 4");
  EXPECT_EQ(refusal(), "data.jsonl:7: no good");
  EXPECT_THAT(lines_, Contains("a word before"));
  EXPECT_THAT(fs::exists(folder_ / "cache") ? real_files().list(folder_ / "cache") : std::vector<std::string>(),
              IsEmpty());
}

TEST_F(PrepareDataTest, RowsBeyondARotaryModelsPositionsAreAllowedWithOneWord) {
  const auto about_length = [&] {
    return std::ranges::count_if(lines_, [](const std::string& line) { return line.starts_with("cutoff_len: "); });
  };
  config_.validation_file = config_.train_file;
  config_.cutoff_len = 64;
  spec_.rotary_positions = 64;
  open();
  EXPECT_EQ(about_length(), 0);
  spec_.rotary_positions = 63;
  EXPECT_EQ(open().sampling.cutoff_len, 64);
  EXPECT_EQ(about_length(), 1);
  EXPECT_THAT(lines_, Contains(HasSubstr("64 is more than the 63 positions")));
}

TEST_F(PrepareDataTest, RowsBeyondLearnedPositionsAreRefusedWhenTheyWereAskedFor) {
  config_.cutoff_len = 64;
  spec_.max_positions = 63;
  EXPECT_EQ(open().sampling.cutoff_len, 63);
  config_.given["cutoff_len"] = "c.yaml:3";
  try {
    open();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("cutoff_len (c.yaml:3): 64 is more than the model's 63 positions"));
  }
}

}  // namespace
}  // namespace protrain
