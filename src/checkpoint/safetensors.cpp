#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"

// Fuzz builds set this to the number of one check to leave out, to prove that the fuzz target sees its absence.
#ifndef PROTRAIN_FUZZ_DROP_CHECK
#define PROTRAIN_FUZZ_DROP_CHECK 0
#endif

namespace protrain {
namespace {

constexpr Bytes kLengthBytes = 8;
constexpr Bytes kMaxHeaderBytes = 100'000'000;  // the format's own cap
constexpr Bytes kDataAlignment = 8;             // the header is padded with spaces to this
constexpr std::size_t kMaxDimensions = 16;
constexpr const char* kMetadataKey = "__metadata__";

constexpr bool checked(int check) { return PROTRAIN_FUZZ_DROP_CHECK != check; }

// A name from the file, fit for one line.
std::string shown(std::string text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::optional<DType> dtype_named(std::string_view name) {
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64, DType::kI64, DType::kI32, DType::kI16,
                           DType::kU8, DType::kBool}) {
    if (safetensors_name(type) == name) return type;
  }
  return std::nullopt;
}

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape, offsets;
};

// Takes the header's events one by one: a duplicate key is seen, and nothing is built but what the format allows.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::kBegin: at_ = At::kRoot; return true;
      case At::kRootValue: at_ = key_ == kMetadataKey ? At::kMetadata : At::kEntry; break;
      default: wrong("an object");
    }
    if (at_ == At::kEntry) entries.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }
  bool end_object() override {
    at_ = at_ == At::kRoot ? At::kEnd : At::kRoot;
    return true;
  }
  bool key(string_t& key) override {
    if (at_ == At::kRoot) {
      key_ = key;
      at_ = At::kRootValue;
      if (key == kMetadataKey && std::exchange(metadata_seen_, true)) {
        fail(ExitCode::kFiles, "{}: header key '{}' stands twice", file_, kMetadataKey);
      }
    } else if (at_ == At::kMetadata) {
      metadata_key_ = key;
      at_ = At::kMetadataValue;
    } else {
      field_ = key;
      at_ = At::kField;
    }
    return true;
  }
  bool string(string_t& value) override {
    if (at_ == At::kMetadataValue) {
      if (!metadata.emplace(metadata_key_, value).second) {
        fail(ExitCode::kFiles, "{}: metadata key '{}' stands twice", file_, shown(metadata_key_));
      }
      at_ = At::kMetadata;
      return true;
    }
    if (at_ != At::kField || field_ != "dtype") wrong("a string");
    set(entries.back().dtype, value);
    return true;
  }
  bool start_array(std::size_t) override {
    if (at_ != At::kField || (field_ != "shape" && field_ != "data_offsets")) wrong("a list");
    numbers_.clear();
    at_ = At::kNumbers;
    return true;
  }
  bool end_array() override {
    set(field_ == "shape" ? entries.back().shape : entries.back().offsets, numbers_);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::kNumbers) wrong("a number");
    if (numbers_.size() == kMaxDimensions) wrong(fmt::format("a list of more than {} numbers", kMaxDimensions));
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override { wrong(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t, const string_t& text) override { wrong("the number " + shown(text)); }
  bool null() override { wrong("null"); }
  bool boolean(bool) override { wrong("a boolean"); }
  bool binary(binary_t&) override { wrong("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    fail(ExitCode::kFiles, "{}: header is not JSON at its byte {} ({})", file_, position, shown(error.what()));
  }

 private:
  enum class At { kBegin, kRoot, kRootValue, kMetadata, kMetadataValue, kEntry, kField, kNumbers, kEnd };

  template <typename T, typename U>
  void set(std::optional<T>& field, const U& value) {
    if (field) fail(ExitCode::kFiles, "{}: tensor '{}': '{}' stands twice", file_, shown(key_), field_);
    field = value;
    at_ = At::kEntry;
  }
  [[noreturn]] void wrong(const std::string& what) {
    const std::string place = at_ == At::kBegin || at_ == At::kEnd ? std::string("at the top")
                              : at_ == At::kMetadata || at_ == At::kMetadataValue
                                  ? "in " + std::string(kMetadataKey)
                                  : fmt::format("at '{}' of '{}'", shown(field_), shown(key_));
    fail(ExitCode::kFiles,
         "{}: header holds {} {}; a tensor has dtype (text), shape and data_offsets (lists of whole numbers)", file_,
         what, place);
  }

  std::string file_;
  At at_ = At::kBegin;
  std::string key_, field_, metadata_key_;
  bool metadata_seen_ = false;
  std::vector<std::uint64_t> numbers_;
};

// Bytes of the tensor, or nothing when they do not fit 63 bits.
std::optional<Bytes> tensor_bytes(const std::vector<std::uint64_t>& shape, DType dtype) {
  // A zero dimension makes the tensor empty, whatever the others are; each is still a 63-bit number.
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t product = static_cast<std::uint64_t>(size_of(dtype));
  bool overflow = false, empty = false;
  for (const std::uint64_t dimension : shape) {
    if (dimension > kMax) return std::nullopt;
    empty = empty || dimension == 0;
    overflow = __builtin_mul_overflow(product, dimension, &product) || overflow;
    overflow = overflow || product > kMax;
  }
  if (empty) return 0;
  if (overflow && checked(3)) return std::nullopt;
  return static_cast<Bytes>(product);
}

TensorInfo make_info(const Entry& entry, const std::string& file, Bytes data_start, Bytes file_bytes) {
  const std::string name = shown(entry.name);
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    fail(ExitCode::kFiles, "{}: tensor '{}': {} is missing", file, name,
         !entry.dtype   ? "dtype"
         : !entry.shape ? "shape"
                        : "data_offsets");
  }
  const std::optional<DType> dtype = dtype_named(*entry.dtype);
  if (!dtype) {
    fail(ExitCode::kFiles, "{}: tensor '{}': dtype '{}' is not supported (weights are F32, BF16 or F16)", file, name,
         shown(*entry.dtype));
  }
  if (entry.offsets->size() != 2 || (*entry.offsets)[0] > (*entry.offsets)[1]) {
    fail(ExitCode::kFiles, "{}: tensor '{}': data_offsets must be [begin, end], begin <= end", file, name);
  }
  const std::uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  const auto data_bytes = static_cast<std::uint64_t>(file_bytes - data_start);
  if (end > data_bytes && checked(2)) {
    const auto start = static_cast<std::uint64_t>(data_start);
    fail(ExitCode::kFiles, "{}: tensor '{}': needs bytes [{},{}) but the file has {}", file, name,
         std::min(begin, ~start) + start, std::min(end, ~start) + start, file_bytes);
  }
  const std::optional<Bytes> bytes = tensor_bytes(*entry.shape, *dtype);
  if (!bytes)
    fail(ExitCode::kFiles, "{}: tensor '{}': shape [{}] overflows", file, name, fmt::join(*entry.shape, ", "));
  if (static_cast<std::uint64_t>(*bytes) != end - begin && checked(5)) {
    fail(ExitCode::kFiles, "{}: tensor '{}': shape [{}] of {} takes {} bytes but data_offsets hold {}", file, name,
         fmt::join(*entry.shape, ", "), *entry.dtype, *bytes, end - begin);
  }
  TensorInfo info;
  info.name = entry.name;
  info.dtype = *dtype;
  info.shape.assign(entry.shape->begin(), entry.shape->end());
  info.offset = data_start + static_cast<Bytes>(begin);
  info.bytes = static_cast<Bytes>(end - begin);
  return info;
}

// The data section is covered by the tensors without hole or overlap.
void check_coverage(const std::vector<TensorInfo>& tensors, const std::string& file, Bytes data_start,
                    Bytes file_bytes) {
  Bytes position = data_start;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != position && checked(4)) {
      fail(ExitCode::kFiles, "{}: tensor '{}': starts at byte {} but the one before it ends at {}", file,
           shown(tensor.name), tensor.offset, position);
    }
    position = tensor.offset + tensor.bytes;
  }
  if (position < file_bytes) {
    fail(ExitCode::kFiles, "{}: {} bytes after the last tensor (it ends at {}, the file at {})", file,
         file_bytes - position, position, file_bytes);
  }
}

std::uint64_t read_length(const ReadableFile& file) {
  std::array<std::byte, kLengthBytes> bytes;
  file.read_at(0, bytes);
  std::uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return length;
}

}  // namespace

SafetensorsFile::SafetensorsFile(Files& files, const std::filesystem::path& path)
    : path_(path), file_(files.open(path)) {
  const std::string name = path.string();
  const Bytes size = file_->size();
  if (size < kLengthBytes) {
    fail(ExitCode::kFiles, "{}: not a safetensors file: {} bytes, the header's length alone takes 8", name, size);
  }
  const std::uint64_t length = read_length(*file_);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    fail(ExitCode::kFiles, "{}: not a safetensors file: a header of {} bytes (at most {})", name, length,
         kMaxHeaderBytes);
  }
  const Bytes data_start = kLengthBytes + static_cast<Bytes>(length);
  if (data_start > size && checked(1)) {
    fail(ExitCode::kFiles, "{}: header needs bytes [8,{}) but the file has {}", name, data_start, size);
  }
  std::string header(length, '\0');
  file_->read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (header.empty() || header.front() != '{') {
    fail(ExitCode::kFiles, "{}: not a safetensors file: the header does not start with '{{'", name);
  }
  HeaderReader reader(name);
  nlohmann::json::sax_parse(header, &reader);
  metadata_ = std::move(reader.metadata);

  for (const Entry& entry : reader.entries) tensors_.push_back(make_info(entry, name, data_start, size));
  // Empty tensors share their offset with the next one; ordering by size as well keeps them before it.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      fail(ExitCode::kFiles, "{}: tensor '{}' stands twice", name, shown(tensors_[i].name));
    }
  }
  check_coverage(tensors_, name, data_start, size);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, Bytes first, std::span<std::byte> to) const {
  const auto count = static_cast<Bytes>(to.size());
  PROTRAIN_CHECK(first >= 0 && first <= tensor.bytes && count <= tensor.bytes - first,
                 "{}: tensor '{}': [{}, +{}) of {} bytes", path_.string(), tensor.name, first, count, tensor.bytes);
  file_->read_at(tensor.offset + first, to);
}

// Small tensors (norms, biases) are gathered so that every write is large.
struct SafetensorsWriter::State {
  static constexpr std::size_t kBufferBytes = static_cast<std::size_t>(4 * kMiB);

  std::string name;
  std::unique_ptr<WritableFile> file;
  std::vector<std::byte> buffer;
  Bytes expected = 0, appended = 0;

  void flush() {
    if (!buffer.empty()) file->write(buffer);
    buffer.clear();
  }
};

namespace {

std::string header_text(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::string text = header.dump();
  text.pop_back();  // the closing brace
  Bytes position = 0;
  for (const TensorInfo& tensor : tensors) {
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", text.size() > 1 ? "," : "",
                        nlohmann::json(tensor.name).dump(), safetensors_name(tensor.dtype),
                        fmt::join(tensor.shape, ","), position, position + tensor.bytes);
    position += tensor.bytes;
  }
  text += '}';
  text.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), kDataAlignment)), ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(Files& files, const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>()) {
  std::map<std::string, bool> seen;
  for (TensorInfo& tensor : tensors) {
    tensor.bytes = size_of(tensor.dtype);
    for (const std::int64_t dimension : tensor.shape) tensor.bytes *= dimension;
    PROTRAIN_CHECK(seen.emplace(tensor.name, true).second, "{}: tensor '{}' twice", path.string(), tensor.name);
    PROTRAIN_CHECK(state_->expected % size_of(tensor.dtype) == 0, "{}: tensor '{}' would start unaligned",
                   path.string(), tensor.name);
    state_->expected += tensor.bytes;
  }
  const std::string header = header_text(tensors, metadata);
  if (static_cast<Bytes>(header.size()) > kMaxHeaderBytes) {
    fail(ExitCode::kFiles, "{}: a header of {} bytes (at most {})", path.string(), header.size(), kMaxHeaderBytes);
  }
  std::array<std::byte, kLengthBytes> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));

  state_->name = path.string();
  state_->file = files.create(path);
  state_->buffer.reserve(State::kBufferBytes);
  state_->buffer.insert(state_->buffer.end(), length.begin(), length.end());
  const auto text = std::as_bytes(std::span(header));
  state_->buffer.insert(state_->buffer.end(), text.begin(), text.end());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  state_->appended += static_cast<Bytes>(bytes.size());
  PROTRAIN_CHECK(state_->appended <= state_->expected, "{}: more bytes than its header says", state_->name);
  if (state_->buffer.size() + bytes.size() <= State::kBufferBytes) {
    state_->buffer.insert(state_->buffer.end(), bytes.begin(), bytes.end());
    return;
  }
  state_->flush();
  if (bytes.size() > State::kBufferBytes) {
    state_->file->write(bytes);
  } else {
    state_->buffer.assign(bytes.begin(), bytes.end());
  }
}

void SafetensorsWriter::finish(bool sync) {
  PROTRAIN_CHECK(state_->appended == state_->expected, "{}: {} of {} bytes came", state_->name, state_->appended,
                 state_->expected);
  state_->flush();
  if (sync) state_->file->sync();
  state_->file->close();
}

}  // namespace protrain
