// For tests and fuzz targets: files that live in memory, and token files built by hand from the formats' descriptions.
#pragma once
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace protrain::test {

// Read-only; not thread-safe while files are added. A file read past its end is Error(kFiles), as on disk.
class MemoryFiles : public Files {
 public:
  void add(const std::string& path, std::string content) { contents_[path] = std::move(content); }

  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override {
    const auto found = contents_.find(path.string());
    if (found == contents_.end()) fail(ExitCode::kFiles, "cannot open {}: no such file", path.string());
    return std::make_unique<File>(found->second);
  }
  bool exists(const std::filesystem::path& path) override { return contents_.contains(path.string()); }
  std::unique_ptr<WritableFile> create(const std::filesystem::path&) override { refuse(); }
  void make_directories(const std::filesystem::path&) override { refuse(); }
  std::vector<std::string> list(const std::filesystem::path&) override { refuse(); }
  void rename(const std::filesystem::path&, const std::filesystem::path&) override { refuse(); }
  void remove_all(const std::filesystem::path&) override { refuse(); }
  void sync_directory(const std::filesystem::path&) override { refuse(); }

 private:
  class File : public ReadableFile {
   public:
    // An own heap block of the exact size, so that a sanitizer sees a read past the end.
    explicit File(const std::string& content) : bytes_(content.begin(), content.end()) { bytes_.shrink_to_fit(); }
    Bytes size() const override { return static_cast<Bytes>(bytes_.size()); }
    void read_at(Bytes offset, std::span<std::byte> to) const override {
      if (offset < 0 || offset > size() || static_cast<Bytes>(to.size()) > size() - offset) {
        fail(ExitCode::kFiles, "read of {} bytes at {} of {}", to.size(), offset, size());
      }
      if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
    }

   private:
    std::vector<char> bytes_;
  };
  [[noreturn]] static void refuse() { throw InternalError("MemoryFiles only reads"); }

  std::map<std::string, std::string> contents_;
};

template <typename T>
void put(std::string* to, std::size_t offset, T value) {
  std::memcpy(to->data() + offset, &value, sizeof value);
}

struct Sample {
  std::vector<std::uint32_t> tokens;
  std::vector<bool> supervised;  // as long as tokens
};

inline std::string mask_bits(const std::vector<bool>& mask) {
  std::string bits((mask.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
  }
  return bits;
}

inline std::string token_bytes_of(const std::vector<std::uint32_t>& tokens, int width) {
  std::string bytes(tokens.size() * static_cast<std::size_t>(width), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(bytes.data() + i * static_cast<std::size_t>(width), &tokens[i], static_cast<std::size_t>(width));
  }
  return bytes;
}

// The last field of the .ptk header, from the others.
inline void seal_ptk_header(std::string* file) { put(file, 96, std::uint64_t{XXH64(file->data(), 96, 0)}); }

// Its digest, which check_digest() wants; a file without one it takes as it is.
inline void seal_ptk_body(std::string* file) {
  const auto* body = reinterpret_cast<const Bytef*>(file->data() + 112);
  put(file, 104, std::uint64_t{1} << 32 | crc32_z(0, body, file->size() - 112));
}

inline std::string ptk_file(const std::vector<Sample>& samples, std::uint64_t vocabulary, int width,
                            const std::string& json = "{}") {
  std::vector<std::uint32_t> tokens;
  std::vector<bool> mask;
  std::vector<std::uint64_t> starts = {0};
  std::uint64_t longest = 0;
  for (const Sample& sample : samples) {
    tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
    mask.insert(mask.end(), sample.supervised.begin(), sample.supervised.end());
    starts.push_back(tokens.size());
    longest = std::max<std::uint64_t>(longest, sample.tokens.size());
  }
  std::string file(104, '\0');
  std::uint64_t at[4];
  const std::string sections[4] = {
      token_bytes_of(tokens, width),
      std::string(reinterpret_cast<const char*>(starts.data()), starts.size() * sizeof starts[0]), mask_bits(mask),
      json};
  for (int i = 0; i < 4; ++i) {
    file.resize((file.size() + 63) / 64 * 64);
    at[i] = file.size();
    file += sections[i];
  }
  std::memcpy(file.data(), "PTKTOK1\0", 8);
  put(&file, 8, std::uint32_t{1});
  put(&file, 12, static_cast<std::uint32_t>(width));
  put(&file, 16, std::uint64_t{tokens.size()});
  put(&file, 24, std::uint64_t{samples.size()});
  put(&file, 32, vocabulary);
  put(&file, 40, longest);
  for (std::size_t i = 0; i < 4; ++i) put(&file, 48 + 8 * i, at[i]);
  put(&file, 80, std::uint64_t{json.size()});
  put(&file, 88, std::uint64_t{file.size()});
  seal_ptk_header(&file);
  return file;
}

inline std::string llmc_file(const std::vector<std::uint32_t>& tokens, bool wide) {
  std::string file(1024, '\0');
  put(&file, 0, std::uint32_t{wide ? 20240801u : 20240520u});
  put(&file, 4, std::uint32_t{wide ? 7u : 1u});
  put(&file, 8, static_cast<std::uint32_t>(tokens.size()));
  return file + token_bytes_of(tokens, wide ? 4 : 2);
}

inline std::string llmq_file(const std::vector<std::uint32_t>& tokens, const std::vector<bool>& mask, int version,
                             std::int32_t vocabulary) {
  std::string file = "BIN.TOK\n" + std::string(1016, '\0');
  put(&file, 8, std::int32_t{version});
  put(&file, 12, std::int32_t{4});
  put(&file, 16, static_cast<std::int32_t>(tokens.size()));
  if (version == 2) {
    put(&file, 20, vocabulary);
    put(&file, 24, static_cast<std::int32_t>(!mask.empty()));
  }
  file += token_bytes_of(tokens, 4);
  return mask.empty() ? file : file + mask_bits(mask);
}

}  // namespace protrain::test
