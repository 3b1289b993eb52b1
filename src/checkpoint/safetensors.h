// The safetensors format: u64 header length, JSON header, tensor bytes. Readers check every bound before use.
// Thread safety: const methods of an open file any thread; a writer has one owner. Errors: Error(kFiles) naming file
// and tensor.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"

namespace protrain {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  Bytes offset = 0;  // in the file
  Bytes bytes = 0;
};

class SafetensorsFile {
 public:
  SafetensorsFile(Files&, const std::filesystem::path&);
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorInfo* find(const std::string& name) const;                  // null when absent
  void read(const TensorInfo&, Bytes first, std::span<std::byte>) const;  // raw bytes of the tensor from `first`
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<ReadableFile> file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

// Streams a file whose header is known beforehand: tensors are appended in order, in pieces of any size.
class SafetensorsWriter {
 public:
  SafetensorsWriter(Files&, const std::filesystem::path&, std::vector<TensorInfo> tensors,  // offset, bytes ignored
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  void append(std::span<const std::byte>);  // next bytes of the data section
  void finish(bool sync);                   // checks that every byte came

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
