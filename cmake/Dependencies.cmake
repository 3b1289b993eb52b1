# Compilers, flags and the libraries that layers link.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(ZLIB REQUIRED)

add_library(protrain_flags INTERFACE)
target_compile_options(protrain_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -ffp-contract=off>)
target_include_directories(protrain_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(protrain_flags INTERFACE Threads::Threads fmt::fmt)
if(PROTRAIN_SANITIZE)
  target_compile_options(protrain_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PROTRAIN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(protrain_flags INTERFACE -fsanitize=${PROTRAIN_SANITIZE})
endif()

# CUDA: compiled whenever a compiler is there, also on machines without a GPU.
set(PROTRAIN_CUDA OFF)
if(PROTRAIN_WITH_CUDA)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE capability
                    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed EQUAL 0 AND capability MATCHES "^([0-9]+)\\.([0-9]+)")
      set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    find_package(CUDAToolkit REQUIRED)
    set(PROTRAIN_CUDA ON)
  endif()
endif()
message(STATUS "protrain: CUDA ${PROTRAIN_CUDA}, LibTorch ${PROTRAIN_WITH_TORCH}")

# LibTorch from the wheel, by plain flags (its CMake package needs a matching nvcc). System headers: they warn.
if(PROTRAIN_WITH_TORCH)
  if(NOT EXISTS ${PROTRAIN_TORCH}/include/ATen/ATen.h)
    message(FATAL_ERROR "PROTRAIN_TORCH=${PROTRAIN_TORCH} holds no LibTorch; `make build` sets it")
  endif()
  add_library(protrain_torch INTERFACE)
  target_include_directories(protrain_torch SYSTEM INTERFACE
    ${PROTRAIN_TORCH}/include ${PROTRAIN_TORCH}/include/torch/csrc/api/include)
  target_compile_options(protrain_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-g1>)
  # LibTorch's own fmt headers come before the system's, and no library exports their functions.
  target_compile_definitions(protrain_torch INTERFACE FMT_HEADER_ONLY)
  # libtorch.so exports a std::filesystem of its own that crashes: ours must be found first.
  target_link_libraries(protrain_torch INTERFACE -Wl,--no-as-needed stdc++)
  cmake_path(GET PROTRAIN_TORCH PARENT_PATH site_packages)
  target_link_directories(protrain_torch INTERFACE ${PROTRAIN_TORCH}/lib)
  if(PROTRAIN_CUDA)
    target_link_libraries(protrain_torch INTERFACE -Wl,--no-as-needed torch torch_cpu torch_cuda c10 c10_cuda CUDA::cudart)
  else()
    target_link_libraries(protrain_torch INTERFACE -Wl,--no-as-needed torch torch_cpu c10)
  endif()
  target_link_options(protrain_torch INTERFACE
    -Wl,-rpath,${PROTRAIN_TORCH}/lib -Wl,-rpath,${site_packages}/nvidia/cu13/lib
    -Wl,--unresolved-symbols=ignore-in-shared-libs)
endif()
