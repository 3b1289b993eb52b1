#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace protrain {
namespace {
namespace fs = std::filesystem;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    std::string name = (fs::temp_directory_path() / "metrics-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~MetricsTest() override { fs::remove_all(folder_); }
  std::string text() const { return real_files().read_text(file()); }
  fs::path file() const { return folder_ / "metrics.jsonl"; }
  fs::path folder_;
};

MetricsRow row(std::int64_t step) {
  MetricsRow made(step);
  made.add("kind", "train").add("loss", 1.0 / static_cast<double>(step));
  return made;
}

TEST_F(MetricsTest, NumbersKeepAllTheirBits) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const double value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    MetricsRow made(i);
    made.add("value", value).add("count", static_cast<std::int64_t>(random() >> 1)).add("yes", true);
    const nlohmann::json read = nlohmann::json::parse(made.json());
    EXPECT_EQ(read.at("value").get<double>(), value);
    EXPECT_EQ(read.at("step"), i);
    EXPECT_EQ(read.at("yes"), true);
  }
}

TEST_F(MetricsTest, WhatJsonCannotSayIsNull) {
  MetricsRow made(1);
  made.add("loss", std::numeric_limits<double>::quiet_NaN()).add("norm", std::numeric_limits<double>::infinity());
  EXPECT_TRUE(nlohmann::json::parse(made.json()).at("loss").is_null());
  EXPECT_TRUE(nlohmann::json::parse(made.json()).at("norm").is_null());
  EXPECT_TRUE(made.numbers().empty());
}

TEST_F(MetricsTest, ResumeDropsRowsPastTheStepAndATornLine) {
  {
    MetricsLog log(real_files(), file(), 0);
    for (const std::int64_t step : {1, 2, 3, 4}) log.write(row(step));
  }
  const std::string before = text();
  {
    std::ofstream(file(), std::ios::app) << "{\"step\": 2, \"lo";
  }
  MetricsLog log(real_files(), file(), 2);
  log.write(row(3));
  EXPECT_EQ(text(), before.substr(0, before.find("{\"step\": 4")));
}

TEST_F(MetricsTest, AFreshRunStartsAnEmptyFile) {
  {
    MetricsLog(real_files(), file(), 0).write(row(1));
  }
  MetricsLog log(real_files(), file(), 0);
  EXPECT_EQ(text(), "");
}

TEST_F(MetricsTest, EachRowIsInTheFileWhenWriteReturns) {
  MetricsLog log(real_files(), file(), 0);
  log.write(row(1));
  EXPECT_EQ(text(), row(1).json() + "\n");
}

}  // namespace
}  // namespace protrain
