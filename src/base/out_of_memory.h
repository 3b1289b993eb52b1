// Telling an exhausted memory from other failures. Pure; thread-safe.
#pragma once
#include <exception>

namespace protrain {

// std::bad_alloc, a thread or mapping that the system refuses for want of memory, and LibTorch's allocators, whose
// exceptions tell it in their text alone; also when an executor's message has been put around it.
bool is_out_of_memory(const std::exception&);

}  // namespace protrain
