#include "base/out_of_memory.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/error.h"

namespace protrain {
namespace {

TEST(OutOfMemory, IsToldByTypeAndByWhatAllocatorsSay) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::system_error(EAGAIN, std::generic_category())));
  EXPECT_TRUE(is_out_of_memory(InternalError("forward L0: std::bad_alloc")));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
      "tried to allocate 4194304 bytes. Error code 12 (Cannot allocate memory)")));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("CUDA out of memory. Tried to allocate 2.00 GiB.")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("shape '[2, 3]' is invalid for input of size 5")));
  EXPECT_FALSE(is_out_of_memory(std::system_error(ENOENT, std::generic_category())));
}

}  // namespace
}  // namespace protrain
