#include "train/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/seconds_since.h"

namespace protrain {
namespace {

constexpr int kBarWidth = 24;
constexpr double kSecondsBetweenDraws = 0.1;

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12) + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

Progress::Progress(ProgressOptions options, std::int64_t first_step, std::int64_t total_steps)
    : options_(std::move(options)),
      first_step_(first_step),
      total_steps_(total_steps),
      begin_(std::chrono::steady_clock::now()),
      last_draw_(begin_) {}

Progress::~Progress() {
  if (open_line_ && options_.print) options_.print("\n");
}

void Progress::step(std::int64_t step, const ProgressNumbers& numbers, bool logged) {
  if (!options_.print || (!options_.terminal && !logged)) return;
  if (options_.terminal && step < total_steps_ && seconds_since(last_draw_) < kSecondsBetweenDraws) return;
  const std::int64_t done = std::max<std::int64_t>(1, step - first_step_);
  const double left = seconds_since(begin_) / static_cast<double>(done) * static_cast<double>(total_steps_ - step);
  std::string text = fmt::format("step {}/{}  loss {:.4f}  lr {:.3g}  grad_norm {:.3f}  {:.0f} tokens/s  left {}", step,
                                 total_steps_, numbers.loss, numbers.learning_rate, numbers.gradient_norm,
                                 numbers.tokens_per_second, format_duration(left));
  if (numbers.skipped) text += "  (update skipped: not finite)";
  if (!options_.terminal) {
    options_.print(text + "\n");
    return;
  }
  const auto filled = static_cast<std::size_t>(kBarWidth * step / std::max<std::int64_t>(1, total_steps_));
  redraw(fmt::format("[{}{}] {}", std::string(filled, '='), std::string(kBarWidth - filled, ' '), text));
}

void Progress::evaluating(std::int64_t batch, std::int64_t batches) {
  if (!options_.print || !options_.terminal || seconds_since(last_draw_) < kSecondsBetweenDraws) return;
  redraw(fmt::format("evaluating {}/{}", batch, batches));
}

void Progress::redraw(const std::string& line) {
  options_.print("\r\x1b[K" + line);
  last_draw_ = std::chrono::steady_clock::now();
  open_line_ = true;
}

}  // namespace protrain
