#include "train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "train/foreign_keys.h"

namespace protrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLeast = "model_name_or_path: m\ntrain_file: t.jsonl\noutput_dir: out\n";

TrainConfig parse(const std::string& yaml, std::vector<std::string> overrides = {}) {
  return parse_config(kLeast + yaml, "run.yaml", overrides);
}

std::string refusal(const std::string& whole_yaml, std::vector<std::string> overrides = {}) {
  try {
    parse_config(whole_yaml, "run.yaml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

std::string refused(const std::string& yaml, std::vector<std::string> overrides = {}) {
  return refusal(kLeast + yaml, std::move(overrides));
}

TEST(ConfigTest, NumbersBelowTheirLeastOrTooLargeAreRefusedForEveryKey) {
  for (const ConfigKey& key : config_keys()) {
    const bool whole = std::holds_alternative<std::int64_t TrainConfig::*>(key.member) ||
                       std::holds_alternative<std::vector<std::int64_t> TrainConfig::*>(key.member);
    const bool size = std::holds_alternative<ByteSize TrainConfig::*>(key.member);
    const bool real = std::holds_alternative<double TrainConfig::*>(key.member) ||
                      std::holds_alternative<std::optional<double> TrainConfig::*>(key.member);
    if (!whole && !size && !real) continue;
    // No key has a use for any of these.
    std::vector<std::string> wrong = {"-2", "-9223372036854775809", "nan", "inf", "1e400", "--1", "0x10", "1_000"};
    if (whole || size)
      wrong.insert(wrong.end(), {"9223372036854775808", "18446744073709551615", "9223372036854775807"});
    if (whole) wrong.insert(wrong.end(), {"1.5", "1e3"});
    for (const std::string& value : wrong) {
      const std::string line = fmt::format("{}: {}", key.name, value);
      EXPECT_THAT(refusal(line), AllOf(HasSubstr("run.yaml:1"), HasSubstr(std::string(key.name)))) << line;
    }
  }
}

TEST(ConfigTest, AFileWhoseNameHasACommaIsOneFileAndOneMayBeginWithDashes) {
  const std::string comma = testing::TempDir() + "a,b.jsonl";
  std::ofstream(comma) << "x";
  EXPECT_THAT(parse("", {"--train_file", comma}).train_file, ElementsAre(comma));
  EXPECT_THAT(parse("", {"--train_file", "c,d.jsonl"}).train_file, ElementsAre("c", "d.jsonl"));
  EXPECT_THAT(parse("", {"--train_file=--x.jsonl"}).train_file, ElementsAre("--x.jsonl"));
  EXPECT_THAT(refused("", {"--train_file", "--x.jsonl"}), HasSubstr("--train_file=VALUE"));
}

TEST(ConfigTest, DefaultsAreThoseOfTransformers) {
  const TrainConfig config = parse("");
  EXPECT_EQ(config.learning_rate, 5e-5);
  EXPECT_EQ(config.lr_scheduler_type, "linear");
  EXPECT_EQ(config.per_device_train_batch_size, 8);
  EXPECT_EQ(config.gradient_accumulation_steps, 1);
  EXPECT_EQ(config.num_train_epochs, 3);
  EXPECT_EQ(config.max_steps, -1);
  EXPECT_EQ(config.adam_beta1, 0.9);
  EXPECT_EQ(config.adam_beta2, 0.999);
  EXPECT_EQ(config.adam_epsilon, 1e-8);
  EXPECT_EQ(config.weight_decay, 0);
  EXPECT_EQ(config.max_grad_norm, 1);
  EXPECT_EQ(config.logging_steps, 500);
  EXPECT_EQ(config.save_steps, 500);
  EXPECT_EQ(config.seed, 42);
}

TEST(ConfigTest, ReadsEveryKindOfValue) {
  const TrainConfig config = parse(
      "learning_rate: 2.0e-4\nmax_steps: 7\npacking: yes\nbf16: auto\nchunk_bytes: 4MiB\n"
      "report_to: [tensorboard]\ntrace_steps: [2, 5]\nform: \"alpaca\"\nresidual_dropout: 0.25\nrecompute: true\n");
  EXPECT_EQ(config.learning_rate, 2e-4);
  EXPECT_EQ(config.max_steps, 7);
  EXPECT_TRUE(config.packing);
  EXPECT_EQ(config.bf16, Switch::kAuto);
  EXPECT_EQ(config.chunk_bytes.bytes, 4 * kMiB);
  EXPECT_THAT(config.report_to, ElementsAre("tensorboard"));
  EXPECT_THAT(config.trace_steps, ElementsAre(2, 5));
  EXPECT_EQ(config.form, "alpaca");
  EXPECT_EQ(config.residual_dropout, 0.25);
  EXPECT_EQ(config.recompute, Switch::kTrue);
}

TEST(ConfigTest, TheMicroBatchMayBeLeftToTheSearchWhereTheSamplesOfAnUpdateAreSaid) {
  const TrainConfig config = parse("per_device_train_batch_size: auto\ntrain_batch_size: 64\n");
  EXPECT_EQ(config.per_device_train_batch_size, 0);
  EXPECT_EQ(config.train_batch_size, 64);
  EXPECT_THAT(refused("per_device_train_batch_size: auto\n"),
              AllOf(HasSubstr("run.yaml:4"), HasSubstr("train_batch_size")));
  EXPECT_THAT(refused("per_device_train_batch_size: auto\ntrain_batch_size: 8\ngradient_accumulation_steps: 2\n"),
              AllOf(HasSubstr("gradient_accumulation_steps"), HasSubstr("train_batch_size")));
  EXPECT_THAT(refused("per_device_train_batch_size: 3\ntrain_batch_size: 8\n"),
              AllOf(HasSubstr("train_batch_size is 8"), HasSubstr("3 x")));
  EXPECT_THAT(refused("per_device_train_batch_size: some\n"), AllOf(HasSubstr("'some'"), HasSubstr("or auto")));
  EXPECT_EQ(
      parse("per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\ntrain_batch_size: 8\n").train_batch_size,
      8);
}

TEST(ConfigTest, CommandLineWinsInEverySpelling) {
  const TrainConfig config =
      parse("learning_rate: 1e-5\nseed: 1\n", {"--learning-rate", "3e-4", "--seed=7", "--packing", "--max_steps", "-1",
                                               "--train-file=a.jsonl,b.jsonl", "--gradient-checkpointing"});
  EXPECT_EQ(config.learning_rate, 3e-4);
  EXPECT_EQ(config.seed, 7);
  EXPECT_TRUE(config.packing);
  EXPECT_EQ(config.max_steps, -1);
  EXPECT_THAT(config.train_file, ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(config.recompute, Switch::kTrue);
}

TEST(ConfigTest, AKeyTwiceOnTheCommandLineIsRefusedWithBothValues) {
  EXPECT_THAT(refused("", {"--learning_rate", "1e-5", "--learning-rate=2e-5"}),
              AllOf(HasSubstr("command line: --learning_rate is given twice"), HasSubstr("'1e-5' and as '2e-5'")));
  EXPECT_THAT(refused("", {"--gradient_checkpointing", "--recompute", "null"}),
              AllOf(HasSubstr("--recompute is given twice"), HasSubstr("'true' and as 'null'")));
  EXPECT_EQ(refused("seed: 1\n", {"--seed", "2"}), "accepted");
}

TEST(ConfigTest, UnknownKeyNamesTheNearestOneAndItsLine) {
  EXPECT_THAT(refused("learning_rat: 1e-4\n"),
              AllOf(HasSubstr("run.yaml:4"), HasSubstr("'learning_rat'"), HasSubstr("did you mean 'learning_rate'")));
  EXPECT_THAT(refused("", {"--warmup-step", "3"}),
              AllOf(HasSubstr("command line"), HasSubstr("did you mean 'warmup_steps'")));
  EXPECT_THAT(refused("zzzzzzzzzzzzzz: 1\n"), AllOf(HasSubstr("zzzz"), HasSubstr("--help")));
}

TEST(ConfigTest, KeysOfOtherTrainersAreRefusedWithWhatThereIsInstead) {
  const std::pair<const char*, const char*> keys[] = {
      {"eval_strategy: steps", "eval_steps"},       {"val_size: 0.1", "validation_file"},
      {"neat_packing: true", "packing: true"},      {"tokenized_path: t", "dataset_prepared_path"},
      {"train_on_eos: turn", "train_on_prompt"},    {"roles_to_train: [assistant]", "mask_history"},
      {"evaluation_strategy: no", "eval_steps"},    {"dataset: alpaca_en", "train_file"},
      {"micro_batch_size: 2", "per_device_train_"}, {"template: llama3", "chat template"}};
  for (const auto& [line, instead] : keys) {
    const std::string message = refused(std::string(line) + "\n");
    const std::string name = std::string(line).substr(0, std::string_view(line).find(':'));
    EXPECT_THAT(message, AllOf(HasSubstr("run.yaml:4"), HasSubstr("'" + name + "'"), HasSubstr("other trainers"),
                               HasSubstr(instead)));
    EXPECT_THAT(message, Not(HasSubstr("did you mean")));
  }
  EXPECT_THAT(refused("", {"--eval-strategy", "no"}), AllOf(HasSubstr("command line"), HasSubstr("eval_steps")));
}

TEST(ConfigTest, NoKeyOfThisProgramIsTakenForAForeignOne) {
  for (const ConfigKey& key : config_keys()) {
    EXPECT_EQ(instead_of_foreign_key(key.name), "");
    if (!key.alias.empty()) {
      EXPECT_EQ(instead_of_foreign_key(key.alias), "");
    }
  }
}

TEST(ConfigTest, WrongValueNamesLineKeyValueAndWhatIsRight) {
  EXPECT_THAT(refused("max_steps: ten\n"),
              AllOf(HasSubstr("run.yaml:4"), HasSubstr("max_steps"), HasSubstr("'ten'"), HasSubstr("integer")));
  EXPECT_THAT(refused("max_steps: 1.5\n"), HasSubstr("integer"));
  EXPECT_THAT(refused("packing: maybe\n"), AllOf(HasSubstr("'maybe'"), HasSubstr("true or false")));
  EXPECT_THAT(refused("bf16: half\n"), HasSubstr("true, false or auto"));
  EXPECT_THAT(refused("learning_rate: [1, 2]\n"), AllOf(HasSubstr("[1, 2]"), HasSubstr("number")));
  EXPECT_THAT(refused("learning_rate: nan\n"), HasSubstr("number"));
  EXPECT_THAT(refused("learning_rate: -1\n"), HasSubstr("at least 0"));
  EXPECT_THAT(refused("adam_beta1: 1\n"), HasSubstr("below 1"));
  EXPECT_THAT(refused("per_device_train_batch_size: 0\n"), HasSubstr("at least 1"));
  EXPECT_THAT(refused("lr_scheduler_type: polynomial\n"), HasSubstr("one of constant"));
  EXPECT_THAT(refused("chunk_bytes: big\n"), HasSubstr("64MiB"));
  for (const char* key : {"chunk_bytes", "device_memory_limit", "host_memory_limit"}) {
    for (const char* value : {"0.4", "1.5", "0.0000000001GiB"}) {
      const auto names = AllOf(HasSubstr(fmt::format("{}: '{}'", key, value)), HasSubstr("a whole number of bytes"));
      EXPECT_THAT(refused(fmt::format("{}: {}\n", key, value)), AllOf(HasSubstr("run.yaml:4"), names));
      EXPECT_THAT(refused("", {fmt::format("--{}={}", key, value)}), AllOf(HasSubstr("command line"), names));
    }
    EXPECT_EQ(refused(fmt::format("{}: 0\n", key)), "accepted");
    for (const char* value : {"9223372036854775807", "8EiB", "9000000TiB"}) {  // one bound, whatever is wrong
      EXPECT_THAT(refused(fmt::format("{}: {}\n", key, value)),
                  AllOf(HasSubstr("1TiB (the largest unit), at least 0 and at most 1e+1"), HasSubstr(" bytes")));
    }
  }
  EXPECT_THAT(refused("compute_threads: 257\n"), AllOf(HasSubstr("'257'"), HasSubstr("at least 0 and at most 256")));
  EXPECT_EQ(parse("compute_threads: 256\n").compute_threads, 256);
  EXPECT_THAT(refused("seed: {a: 1}\n"), AllOf(HasSubstr("run.yaml:4"), HasSubstr("nested")));
  EXPECT_THAT(refused("report_to: wandb\n"), HasSubstr("tensorboard"));
  EXPECT_THAT(refused("", {"--max_steps"}), HasSubstr("has no value"));
  EXPECT_THAT(refused("", {"max_steps", "3"}), HasSubstr("--key value"));
}

TEST(ConfigTest, FaultyYamlNamesTheLine) {
  EXPECT_THAT(refused("seed: [1, 2\nx: }\n"), AllOf(HasSubstr("run.yaml:"), HasSubstr("not YAML")));
  EXPECT_THAT(refused("seed: 1\nseed: 2\n"), AllOf(HasSubstr("run.yaml:5"), HasSubstr("twice"), HasSubstr("line 4")));
  EXPECT_THAT(refusal("- a\n- b\n"), HasSubstr("key: value"));
  EXPECT_THAT(refusal("seed: 1\n---\nseed: 2\n"), HasSubstr("not one YAML document"));
}

// yaml-cpp 0.7 reads an endless row of documents from it.
TEST(ConfigTest, TextThatStartsWithACommaEnds) { EXPECT_THAT(refusal(", a: b\n"), HasSubstr("not one YAML document")); }

TEST(ConfigTest, EpochsAndMaxStepsTogetherAreRefusedSayingWhichToDrop) {
  const std::string message = refused("num_train_epochs: 2\nmax_steps: 10\n");
  EXPECT_THAT(message, AllOf(HasSubstr("num_train_epochs (run.yaml:4)"), HasSubstr("max_steps (run.yaml:5)"),
                             HasSubstr("drop one")));
  EXPECT_THAT(refused("num_train_epochs: 2\n", {"--max_steps", "10"}), HasSubstr("max_steps (command line)"));
  EXPECT_EQ(parse("num_train_epochs: 2\nmax_steps: -1\n").num_train_epochs, 2);
  EXPECT_EQ(parse("num_train_epochs: 2\n", {"--num_train_epochs", "null", "--max_steps", "10"}).max_steps, 10);
}

TEST(ConfigTest, MissingAndContradictoryKeysAreNamed) {
  EXPECT_THAT(refusal("train_file: t\noutput_dir: o\n"), HasSubstr("model_name_or_path"));
  EXPECT_THAT(refusal("model_name_or_path: m\noutput_dir: o\n"), HasSubstr("train_file"));
  EXPECT_THAT(refusal("model_name_or_path: m\ntrain_file: t\n"), HasSubstr("output_dir"));
  EXPECT_THAT(refused("config_name: c\n"), AllOf(HasSubstr("model_name_or_path"), HasSubstr("drop one")));
  EXPECT_THAT(refused("eval_steps: 5\n"), HasSubstr("validation_file"));
  EXPECT_THAT(refused("warmup_steps: 5\nwarmup_ratio: 0.1\n"), HasSubstr("drop one"));
}

TEST(ConfigTest, NullMeansTheDefault) {
  EXPECT_EQ(parse("seed:\nlearning_rate: null\n").learning_rate, 5e-5);
  EXPECT_FALSE(parse("seed:\n").is_given("seed"));
}

TEST(ConfigTest, ResumeTakesAPathOrASwitch) {
  EXPECT_EQ(parse("resume_from_checkpoint: true\n").resume_from_checkpoint, "true");
  EXPECT_EQ(parse("resume_from_checkpoint: false\n").resume_from_checkpoint, "");
  EXPECT_EQ(parse("", {"--resume-from-checkpoint"}).resume_from_checkpoint, "true");
  EXPECT_EQ(parse("resume_from_checkpoint: out/checkpoint-5\n").resume_from_checkpoint, "out/checkpoint-5");
}

TEST(ConfigTest, KeyNamesAndAliasesAreUnique) {
  std::map<std::string_view, int> names;
  for (const ConfigKey& key : config_keys()) {
    ++names[key.name];
    if (!key.alias.empty()) ++names[key.alias];
  }
  for (const auto& [name, count] : names) EXPECT_EQ(count, 1) << name;
}

TEST(ConfigTest, EveryDefaultIsAValueThatItsOwnKeyAccepts) {
  const TrainConfig defaults;
  for (const ConfigKey& key : config_keys()) {
    if (key.name == "model_name_or_path" || key.name == "train_file" || key.name == "output_dir") continue;
    const std::string line = std::string(key.name) + ": " + print_value(defaults, key) + "\n";
    EXPECT_NO_THROW(parse(line)) << line;
  }
}

// Texts that YAML could take for something else must survive printing too.
TEST(ConfigTest, PrintedConfigReadsBackToTheSameValues) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> texts = {"a b",  "1",   "null", "~", "a: b", "#x", "\"q\"",
                                          "it's", "- x", "\t",   "é", "a,b",  "{x}"};
  const auto any_text = [&] { return texts[random() % texts.size()] + std::to_string(random() % 10); };
  for (int i = 0; i < 200; ++i) {
    TrainConfig config = parse("");
    config.model_name_or_path = any_text();
    config.train_file = {any_text(), any_text()};
    config.output_dir = any_text();
    config.resume_from_checkpoint = random() % 2 ? "true" : any_text();
    config.learning_rate = std::ldexp(static_cast<double>(random()), -40);
    config.max_steps = random() % 2 ? -1 : static_cast<std::int64_t>(random() % 100);
    config.num_train_epochs = static_cast<double>(random() % 7) / 3;
    config.trace_steps.assign(random() % 3, 4);
    config.chunk_bytes.bytes = 4096 + static_cast<Bytes>(random());
    config.bf16 = static_cast<Switch>(random() % 3);
    if (random() % 2) config.residual_dropout = 0.125;
    const std::string text = print_config(config);
    const TrainConfig back = parse_config(text, "printed.yaml", {});
    if (config.max_steps < 0) {
      EXPECT_EQ(back.num_train_epochs, config.num_train_epochs);
    }
    EXPECT_EQ(print_config(back), text);
    EXPECT_EQ(back.model_name_or_path, config.model_name_or_path);
    EXPECT_EQ(back.train_file, config.train_file);
    EXPECT_EQ(back.resume_from_checkpoint, config.resume_from_checkpoint);
    EXPECT_EQ(back.learning_rate, config.learning_rate);
    EXPECT_EQ(back.residual_dropout, config.residual_dropout);
  }
}

TEST(ConfigTest, APlanIsAMappingAFileOrText) {
  EXPECT_EQ(parse("plan:\n  n_persist: 3\n  chunk_bytes: 4MiB\n  place: {embedding: cpu, n_resident: 0}\n"
                  "  activation: [keep, \"swap\"]\n  order: ~\n")
                .plan,
            R"({"n_persist": 3, "chunk_bytes": "4MiB", "place": {"embedding": "cpu", "n_resident": 0}, )"
            R"("activation": ["keep", "swap"]})");
  EXPECT_EQ(parse("plan: runs/plan.json\n").plan, "runs/plan.json");
  EXPECT_EQ(parse("plan: a.json\n", {"--plan", R"({"n_buffer": 2})"}).plan, R"({"n_buffer": 2})");
  EXPECT_EQ(parse("", {"--plan", "{order: layer, place: {n_resident: 0}}"}).plan,
            R"({"order": "layer", "place": {"n_resident": 0}})");
  EXPECT_EQ(parse("plan: '{order: layer}'\n").plan, R"({"order": "layer"})");
  EXPECT_EQ(parse("", {"--plan", "{\n\t\"a\":{\"b\":{\"c\":{\"d\":{\"e\":1}}}}}"}).plan,
            "{\n\t\"a\":{\"b\":{\"c\":{\"d\":{\"e\":1}}}}}");  // JSON as it is, a whole plan.json too
  for (const char* wrong :
       {"{order: layer", "{order: layer} x", "{order: layer, order: layer}", "{order:layer}", "{"}) {
    EXPECT_THAT(refused("", {"--plan", wrong}), HasSubstr("command line: plan")) << wrong;
  }
  for (const std::string& wrong : {std::string("[]"), std::string("[1"), std::string("5"), std::string("1e3"),
                                   std::string("order: layer\nx: 1"), std::string(300, 'x'), std::string(5000, 'x')}) {
    const std::string message = refused("", {"--plan", wrong});
    EXPECT_THAT(message, AllOf(HasSubstr("command line: plan: '"), HasSubstr("must be a file such as plan.json")));
    EXPECT_LT(message.size(), 220);
  }
  for (const char* file : {"5.json", "./5", "runs/[a].json"}) EXPECT_EQ(parse("", {"--plan", file}).plan, file);
  EXPECT_THAT(refused("plan: {order:layer}\n"), AllOf(HasSubstr("run.yaml:4"), HasSubstr("space after the colon")));
  EXPECT_EQ(parse(R"(plan: {x: "7", y: "a\"b\\c\nd", z: 1.5})").plan, R"({"x": "7", "y": "a\"b\\c\u000ad", "z": 1.5})");
  EXPECT_THAT(refused("plan:\n  n_persist: 1\n  n_persist: 2\n"), AllOf(HasSubstr("plan"), HasSubstr("twice")));
  EXPECT_THAT(refused("plan: {a: {b: {c: {d: {e: 1}}}}}\n"), HasSubstr("too deep"));
  // Aliases of aliases: a short file that would be long.
  std::string bomb = "plan:\n  a: &a [x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x]\n";
  for (const char* pair : {"ba", "cb", "dc", "ed"}) {
    bomb += fmt::format("  {0}: &{0} [", pair[0]);
    for (int i = 0; i < 22; ++i) bomb += fmt::format("{}*{}", i > 0 ? ", " : "", pair[1]);
    bomb += "]\n";
  }
  EXPECT_THAT(refused(bomb), HasSubstr("too"));
  const TrainConfig config = parse("plan: {order: layer}\nhost_memory_limit: 3GiB\n");
  const std::string text = print_config(config);
  EXPECT_EQ(parse_config(text, "printed.yaml", {}).plan, config.plan);
  EXPECT_EQ(parse_config(text, "printed.yaml", {}).host_memory_limit.bytes, 3 * kGiB);
}

TEST(ConfigTest, HelpListsEveryKey) {
  const std::string help = describe_keys();
  for (const ConfigKey& key : config_keys()) EXPECT_THAT(help, HasSubstr("--" + std::string(key.name) + " "));
}

}  // namespace
}  // namespace protrain
