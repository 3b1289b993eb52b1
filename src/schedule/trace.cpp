#include "schedule/trace.h"

#include <fmt/core.h>

namespace protrain {

namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

std::string chrome_trace(const Schedule& schedule, const Timeline& timeline) {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (int lane = 0; lane < kLanes; ++lane) {
    out += fmt::format(
        "{}\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 0, \"tid\": {}, \"args\": {{\"name\": {}}}}}",
        lane == 0 ? "" : ",", lane, quoted(lane_name(static_cast<Lane>(lane))));
  }
  for (const Span& span : timeline.spans) {
    const Task& task = schedule.tasks.at(span.task);
    out += fmt::format(
        ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": {}, \"pid\": 0, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, "
        "\"args\": "
        "{{\"task\": {}}}}}",
        quoted(task.name), quoted(op_name(task.op)), static_cast<int>(span.lane), span.begin_seconds * 1e6,
        (span.end_seconds - span.begin_seconds) * 1e6, span.task);
  }
  return out + "\n]}\n";
}

}  // namespace protrain
