// TensorBoard event files: TFRecords (length and data each with a masked CRC-32C) of `Event` messages, of which we need
// a version, a session start and scalars (tensorflow/core/util/event.proto, framework/summary.proto). One thread.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "train/metrics.h"

namespace protrain {

class TensorBoardLog {
 public:
  // A new event file in `folder`. Steps from `first_step` on that earlier files hold are superseded.
  TensorBoardLog(Files&, const std::filesystem::path& folder, std::int64_t first_step);
  // Every finite number of the row as the scalar PREFIX/NAME.
  void write(const MetricsRow&, std::string_view prefix);

 private:
  void write_event(std::string_view event);
  std::unique_ptr<WritableFile> file_;
};

std::uint32_t crc32c(std::string_view);
std::string tf_record(std::string_view data);

}  // namespace protrain
