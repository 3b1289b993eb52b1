// Opens arbitrary bytes as a token file and reads all of it: the only way out is Error(kData).
//
// sources: src/data/token_file.cpp src/data/token_layout.cpp src/base/error.cpp src/base/files.cpp
//
// libraries: -lfmt -lz
//
// checks: 5
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "data/test_support.h"
#include "data/token_file.h"
#include "memory_files.h"

using protrain::Error;
using protrain::ExitCode;

namespace {

void read_all(const std::string& content, std::int64_t end_token) {
  protrain::MemoryFiles files;  // ends the process at a read outside the file
  const auto bytes = std::as_bytes(std::span(content));
  files.put("x", {bytes.begin(), bytes.end()});
  try {
    const auto file = protrain::open_token_file(files, "x", end_token);
    std::int64_t covered = 0;
    for (std::int64_t sample = 0; sample < file->samples(); ++sample) {
      const std::int64_t first = file->sample_start(sample);
      const std::int64_t count = file->sample_start(sample + 1) - first;
      // Exact sizes, so that a write past the end is seen.
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
      std::vector<std::uint8_t> mask(tokens.size());
      file->read(first, count, tokens.data(), mask.data());
      for (const std::int32_t token : tokens) {
        if (token < 0 || (file->vocabulary() > 0 && token >= file->vocabulary())) std::abort();
      }
      for (const std::uint8_t bit : mask) {
        if (bit > 1) std::abort();
      }
      covered += count;
    }
    if (covered != file->tokens()) std::abort();
    if (file->fingerprint() != file->fingerprint()) std::abort();
    protrain::check_vocabulary(*file, 1000, "x");
    file->check_digest();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kData) std::abort();
  }
}

}  // namespace

// The first byte chooses: bit 0 mends the .ptk header's hash, so that what lies behind it is reached; bit 1 cuts .bin
// files at token 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string content(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0 && content.size() >= 104) protrain::test::seal_ptk_header(&content);
  read_all(content, (data[0] & 2) != 0 ? 0 : -1);
  return 0;
}
