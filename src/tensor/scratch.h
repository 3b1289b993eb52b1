// A small first-fit allocator inside one piece of memory. Internal to tensor/; the caller holds the hooks' mutex.
#pragma once
#include <map>

#include "base/units.h"

namespace protrain::hooks {

class Scratch {
 public:
  Scratch(std::byte* memory, Bytes bytes);
  Bytes bytes() const { return bytes_; }
  std::byte* memory() const { return memory_; }
  bool empty() const { return used_.empty(); }
  void* allocate(Bytes bytes);  // a multiple of kAlignment from the start; null when there is no room
  bool release(void*);          // whether it was one of ours

 private:
  std::byte* const memory_;
  const Bytes bytes_;
  std::map<Bytes, Bytes> used_;  // offset -> bytes
};

}  // namespace protrain::hooks
