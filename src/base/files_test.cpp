#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

class RealFiles : public ::testing::Test {
 protected:
  RealFiles() : root_(fs::path(::testing::TempDir()) / ("real_files" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    files_.make_directories(root_);
  }
  ~RealFiles() override { fs::remove_all(root_); }

  template <typename Fn>
  std::string message_of(const Fn& fn) {
    try {
      fn();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kFiles);
      return error.what();
    }
    return "no error";
  }

  fs::path root_;
  Files& files_ = real_files();
};

TEST_F(RealFiles, WhatIsWrittenIsReadBack) {
  files_.write_text(root_ / "a", "hello", true);
  EXPECT_EQ(files_.read_text(root_ / "a"), "hello");
  files_.write_text(root_ / "a", "", false);
  EXPECT_EQ(files_.read_text(root_ / "a"), "");
}

TEST_F(RealFiles, AppendsGoBehindTheFurthestByteWritten) {
  const auto file = files_.create(root_ / "a");
  file->write(bytes_of("abc"));
  file->write_at(5, bytes_of("f"));
  file->write_at(0, bytes_of("A"));
  file->write(bytes_of("g"));
  file->sync();
  file->close();
  EXPECT_EQ(files_.read_text(root_ / "a"), std::string("Abc\0\0fg", 7));
}

TEST_F(RealFiles, AReadOutsideTheFileIsAnErrorNamingIt) {
  files_.write_text(root_ / "a", "hello", false);
  const auto file = files_.open(root_ / "a");
  std::array<std::byte, 4> to{};
  file->read_at(1, to);
  EXPECT_EQ(to[0], std::byte{'e'});
  for (const Bytes offset : {Bytes{2}, Bytes{6}, Bytes{-1}, std::numeric_limits<Bytes>::max()}) {
    EXPECT_NE(message_of([&] { file->read_at(offset, to); }).find((root_ / "a").string()), std::string::npos);
  }
}

TEST_F(RealFiles, AFileThatShrinksUnderItsReaderIsAnError) {
  files_.write_text(root_ / "a", "hello", false);
  const auto file = files_.open(root_ / "a");
  fs::resize_file(root_ / "a", 2);
  std::array<std::byte, 4> to{};
  EXPECT_NE(message_of([&] { file->read_at(0, to); }).find("shorter"), std::string::npos);
}

TEST_F(RealFiles, AFifoIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { files_.open(root_ / "fifo"); }),
            "cannot open " + (root_ / "fifo").string() + ": not a regular file");
}

TEST_F(RealFiles, ErrorsNamePathAndReason) {
  EXPECT_EQ(message_of([&] { files_.open(root_ / "none"); }),
            "cannot open " + (root_ / "none").string() + ": No such file or directory");
  EXPECT_NE(message_of([&] { files_.open(root_); }).find("directory"), std::string::npos);
  EXPECT_NE(message_of([&] { files_.create(root_ / "no" / "a"); }), "no error");
  EXPECT_NE(message_of([&] { files_.rename(root_ / "none", root_ / "b"); }).find("none"), std::string::npos);
  EXPECT_NE(message_of([&] { files_.list(root_ / "none"); }), "no error");
  EXPECT_NE(message_of([&] { files_.sync_directory(root_ / "none"); }), "no error");
}

TEST_F(RealFiles, WhatIsNoFolderOrCannotBeLookedAtIsSaid) {
  files_.write_text(root_ / "file", "", false);
  fs::create_directory_symlink(root_, root_ / "link");
  fs::create_symlink("loop", root_ / "loop");
  EXPECT_EQ(folder_fault(root_), "");
  EXPECT_EQ(folder_fault(root_ / "link"), "");
  EXPECT_EQ(folder_fault(""), "is not a folder");
  EXPECT_EQ(folder_fault(root_ / "none"), "is not a folder");
  EXPECT_EQ(folder_fault(root_ / "file"), "is not a folder");
  EXPECT_EQ(folder_fault(root_ / "file" / "below"), "is not a folder");
  EXPECT_EQ(folder_fault(root_ / "loop" / "below"), "cannot be looked at: Too many levels of symbolic links");
  EXPECT_EQ(folder_fault(root_ / std::string(5000, 'a')), "cannot be looked at: File name too long");
}

TEST_F(RealFiles, AFullDiskIsReportedByTheWrite) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "the system has no /dev/full";
  const auto file = files_.create("/dev/full");
  EXPECT_EQ(message_of([&] { file->write(bytes_of("x")); }), "cannot write /dev/full: No space left on device");
}

TEST_F(RealFiles, DirectoriesAreMadeListedRenamedAndRemoved) {
  files_.make_directories(root_ / "x" / "y");
  files_.make_directories(root_ / "x" / "y");
  files_.write_text(root_ / "x" / "b", "", false);
  files_.write_text(root_ / "x" / "a", "", false);
  EXPECT_EQ(files_.list(root_ / "x"), (std::vector<std::string>{"a", "b", "y"}));
  files_.rename(root_ / "x", root_ / "z");
  files_.sync_directory(root_);
  EXPECT_FALSE(files_.exists(root_ / "x"));
  EXPECT_TRUE(files_.exists(root_ / "z" / "y"));
  files_.remove_all(root_ / "z");
  files_.remove_all(root_ / "z");
  EXPECT_FALSE(files_.exists(root_ / "z"));
}

}  // namespace
}  // namespace protrain
