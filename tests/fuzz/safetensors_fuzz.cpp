// Any bytes as a safetensors file: refused with Error(kFiles), or each promise of TensorInfo holds and each tensor
// reads.
//
// sources: src/checkpoint/safetensors.cpp src/base/dtype.cpp src/base/error.cpp src/base/files.cpp
//
// libraries: -lfmt
//
// checks: 5
#include "checkpoint/safetensors.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>

#include "memory_files.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const protrain::SafetensorsFile& file, protrain::Bytes data_start, protrain::Bytes file_bytes) {
  std::set<std::string> names;
  protrain::Bytes end = data_start;
  for (const protrain::TensorInfo& tensor : file.tensors()) {
    require(names.insert(tensor.name).second);
    require(file.find(tensor.name) == &tensor);
    require(tensor.bytes >= 0 && tensor.offset >= 0 && tensor.offset <= file_bytes);
    require(tensor.bytes <= file_bytes - tensor.offset);
    require(tensor.offset == end);
    end = tensor.offset + tensor.bytes;

    // Bounded so that the product of 128 bits is exact: past 2^63 it can only be wrong or multiplied by zero.
    unsigned __int128 product = static_cast<unsigned __int128>(protrain::size_of(tensor.dtype));
    bool huge = false, empty = false;
    for (const std::int64_t dimension : tensor.shape) {
      require(dimension >= 0);
      empty = empty || dimension == 0;
      if (!huge) product *= static_cast<unsigned __int128>(dimension);
      huge = huge || product > (static_cast<unsigned __int128>(1) << 63);
    }
    require(empty ? tensor.bytes == 0 : !huge && product == static_cast<unsigned __int128>(tensor.bytes));

    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
    file.read(tensor, 0, bytes);
  }
  require(end == file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  protrain::MemoryFiles files;
  files.put("model.safetensors", {bytes.begin(), bytes.end()});
  try {
    const protrain::SafetensorsFile file(files, "model.safetensors");
    std::uint64_t header_bytes = 0;
    require(size >= sizeof(header_bytes));
    std::memcpy(&header_bytes, data, sizeof(header_bytes));
    require(header_bytes <= size - sizeof(header_bytes));
    check(file, static_cast<protrain::Bytes>(sizeof(header_bytes) + header_bytes), static_cast<protrain::Bytes>(size));
  } catch (const protrain::Error& error) {
    require(error.code() == protrain::ExitCode::kFiles);
  }
  return 0;
}
