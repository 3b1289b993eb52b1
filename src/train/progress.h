// What a person sees while it runs: a bar on a terminal, plain lines otherwise. Prints through the caller's function.
// One thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace protrain {

struct ProgressOptions {
  bool terminal = false;                          // redraw one line; else a line each logged step
  std::function<void(const std::string&)> print;  // exactly this text; may be empty
  int signals_on = -1;                            // descriptor for the lines that acknowledge signals; -1: none
};

struct ProgressNumbers {
  double loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;
  double tokens_per_second = 0;
  bool skipped = false;
};

class Progress {
 public:
  Progress(ProgressOptions, std::int64_t first_step, std::int64_t total_steps);
  ~Progress();  // leaves the terminal at a fresh line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(std::int64_t step, const ProgressNumbers&, bool logged);
  void evaluating(std::int64_t batch, std::int64_t batches);  // terminal only

 private:
  void redraw(const std::string& line);
  ProgressOptions options_;
  std::int64_t first_step_, total_steps_;
  std::chrono::steady_clock::time_point begin_, last_draw_;
  bool open_line_ = false;
};

std::string format_duration(double seconds);  // "0:07", "12:34", "1:02:03"

}  // namespace protrain
