# Finds LibTorch and makes these imported targets, without nvcc or torch's own CMake package (which insists on a CUDA
# toolkit):
#   fulgur::torch        headers, libtorch_cpu, libc10: all that libfulgur.so links
#   fulgur::torch_cuda   adds libtorch_cuda, libc10_cuda and the CUDA runtime, if they and their headers are present
# It is the one in Torch_DIR, if that is set, or else in the environment's Torch_DIR. Without them, an installed Fulgur
# takes the one that it was built with. Else it is looked for in CMAKE_PREFIX_PATH (all as torch's own package uses them),
# then in the cache folder that scripts/setup.sh fills. FULGUR_LIBTORCH=cpu|cuda (environment or cache) chooses between
# the two parts of that folder. Without one, an installed Fulgur gets the reason in FULGUR_LIBTORCH_ERROR.

# Ends this file; of an installed Fulgur, `find_package` shows FULGUR_LIBTORCH_ERROR at the line that calls it.
set(FULGUR_LIBTORCH_ERROR)
macro(_fulgur_refuse_libtorch)
  if(NOT DEFINED FULGUR_TORCH_ROOT_AT_BUILD)
    message(FATAL_ERROR "${FULGUR_LIBTORCH_ERROR}")
  endif()
  return()
endmacro()

set(_cache "$ENV{XDG_CACHE_HOME}")
if(NOT _cache)
  set(_cache "$ENV{HOME}/.cache")
endif()
set(_flavours cuda cpu)
if("$ENV{FULGUR_LIBTORCH}" STREQUAL "cpu" OR (NOT DEFINED ENV{FULGUR_LIBTORCH} AND "${FULGUR_LIBTORCH}" STREQUAL "cpu"))
  set(_flavours cpu cuda)
endif()

set(_candidates)
# What the user names is used, or it is an error.
set(_named "${Torch_DIR}")
set(_name "Torch_DIR")
if(NOT _named)
  set(_named "$ENV{Torch_DIR}")
  set(_name "The environment variable Torch_DIR")
endif()
if(_named)
  get_filename_component(_given "${_named}/../../.." ABSOLUTE)
  if(NOT EXISTS "${_given}/lib/libtorch_cpu.so" OR NOT EXISTS "${_given}/include/ATen/core/Tensor.h")
    string(CONCAT FULGUR_LIBTORCH_ERROR "${_name} is ${_named}, but ${_given} contains no LibTorch (lib/libtorch_cpu.so and include/ATen). "
      "Torch_DIR is the folder share/cmake/Torch of a LibTorch or of Python's package torch; without it, LibTorch is looked for.")
    _fulgur_refuse_libtorch()
  endif()
  list(APPEND _candidates "${_given}")
endif()
# FULGUR_TORCH_ROOT_AT_BUILD: set by the installed package.
list(APPEND _candidates ${FULGUR_TORCH_ROOT_AT_BUILD})
set(_prefixes ${CMAKE_PREFIX_PATH})
string(REPLACE ":" ";" _env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_dir ${_prefixes} ${_env_prefixes})
  list(APPEND _candidates "${_dir}" "${_dir}/torch")
endforeach()
foreach(_flavour ${_flavours})
  if(EXISTS "${_cache}/fulgur/torch-2.11.0-${_flavour}/.complete")
    file(GLOB _found "${_cache}/fulgur/torch-2.11.0-${_flavour}/lib/python3*/site-packages/torch")
    list(APPEND _candidates ${_found})
  endif()
endforeach()

set(_torch_root)
foreach(_dir ${_candidates})
  if(EXISTS "${_dir}/lib/libtorch_cpu.so" AND EXISTS "${_dir}/include/ATen/core/Tensor.h")
    get_filename_component(_torch_root "${_dir}" ABSOLUTE)
    break()
  endif()
endforeach()
if(NOT _torch_root)
  string(CONCAT FULGUR_LIBTORCH_ERROR "LibTorch was not found. Run scripts/setup.sh, which puts it into ${_cache}/fulgur, or name one that you have with "
    "-DTorch_DIR=<torch>/share/cmake/Torch or -DCMAKE_PREFIX_PATH=<torch>. Looked in: ${_candidates}")
  _fulgur_refuse_libtorch()
endif()
# Another minor version has another ABI.
set(_version_header "${_torch_root}/include/torch/headeronly/version.h")
if(EXISTS "${_version_header}")
  file(STRINGS "${_version_header}" _version_lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR) [0-9]+$")
  string(REGEX REPLACE "[^0-9;]" "" _version "${_version_lines}")
  string(REPLACE ";" "." _version "${_version}")
  if(NOT _version STREQUAL "2.11")
    string(CONCAT FULGUR_LIBTORCH_ERROR "Fulgur needs LibTorch 2.11; ${_torch_root} is LibTorch ${_version}. Name another one with "
      "-DTorch_DIR=<torch>/share/cmake/Torch, or run scripts/setup.sh, which installs one.")
    _fulgur_refuse_libtorch()
  endif()
endif()
set(FULGUR_TORCH_ROOT "${_torch_root}" CACHE PATH "The LibTorch in use" FORCE)

# The CUDA wheels lie beside the torch folder: site-packages/nvidia/...
get_filename_component(_site "${_torch_root}" DIRECTORY)
set(FULGUR_TORCH_LIBRARY_DIRS "${_torch_root}/lib")
if(NOT TARGET fulgur::torch)
  add_library(fulgur::torch INTERFACE IMPORTED GLOBAL)
  # After all other folders: the wheel ships an include/fmt newer than the one that spdlog was built with.
  target_compile_options(fulgur::torch INTERFACE
    "SHELL:-idirafter \"${_torch_root}/include\"" "SHELL:-idirafter \"${_torch_root}/include/torch/csrc/api/include\"")
  # LibTorch's wheel is built with g++; from version 18 on, clang mangles the names of constrained templates
  # differently.
  target_compile_options(fulgur::torch INTERFACE
    $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
  target_link_libraries(fulgur::torch INTERFACE "${_torch_root}/lib/libtorch_cpu.so" "${_torch_root}/lib/libc10.so")
  target_link_options(fulgur::torch INTERFACE "-Wl,-rpath,${_torch_root}/lib")
  foreach(_dir "${_site}/nvidia/cu13/lib" "${_site}/nvidia/cuda_runtime/lib" "${_site}/nvidia/cuda_cupti/lib")
    if(EXISTS "${_dir}")
      target_link_options(fulgur::torch INTERFACE "-Wl,-rpath-link,${_dir}")
    endif()
  endforeach()
endif()

# The message at the end says what is missing for libfulgur_cuda.so, and for NCCL in it.
set(FULGUR_WITH_CUDA OFF)
set(FULGUR_WITH_NCCL OFF)
set(_no_cuda "this LibTorch has no ${_torch_root}/lib/libtorch_cuda.so")
if(EXISTS "${_torch_root}/lib/libtorch_cuda.so" AND EXISTS "${_torch_root}/lib/libc10_cuda.so")
  set(_no_cuda)
  foreach(_dir "${_site}/nvidia/cu13/include" "$ENV{CUDA_HOME}/include")
    # The headers in crt/ come in a separate wheel (nvidia-cuda-crt).
    if(EXISTS "${_dir}/cuda_runtime_api.h" AND EXISTS "${_dir}/crt/host_config.h")
      set(_cuda_include "${_dir}")
      break()
    endif()
  endforeach()
  # Headers that LibTorch's own headers include. A toolkit has all of them, and so do the wheels of the cuda part
  # together with nvidia-cuda-cccl.
  if(_cuda_include)
    set(_cuda_probe "${CMAKE_BINARY_DIR}/CMakeFiles/fulgur_cuda_headers.cpp")
    file(WRITE "${_cuda_probe}" "#include <cuda_fp16.h>\n#include <cusparse.h>\n#include <cublas_v2.h>\n#include <cublasLt.h>\n#include <cusolverDn.h>\n")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -idirafter ${_cuda_include} -idirafter ${_cuda_include}/cccl ${_cuda_probe}
      RESULT_VARIABLE _cuda_probe_failed OUTPUT_QUIET ERROR_QUIET)
    if(_cuda_probe_failed)
      unset(_cuda_include)
      string(APPEND _no_cuda "cuda_fp16.h, cusparse.h, cublas_v2.h, cublasLt.h and cusolverDn.h do not compile (the cuda part of LibTorch contains them: FULGUR_LIBTORCH=cuda scripts/setup.sh). ")
    endif()
  endif()
  find_library(_cudart NAMES libcudart.so.13 libcudart.so.12 libcudart.so
    PATHS "${_site}/nvidia/cu13/lib" "$ENV{CUDA_HOME}/lib64" NO_DEFAULT_PATH NO_CACHE)
  if(NOT _cuda_include AND NOT _cuda_probe_failed)
    string(APPEND _no_cuda "no cuda_runtime_api.h with crt/host_config.h (wheels nvidia-cuda-runtime and nvidia-cuda-crt). ")
  endif()
  if(NOT _cudart)
    string(APPEND _no_cuda "no libcudart.so.13 (wheel nvidia-cuda-runtime). ")
  endif()
  if(_no_cuda)
    string(APPEND _no_cuda "Looked in ${_site}/nvidia/cu13 and CUDA_HOME ('$ENV{CUDA_HOME}'); scripts/setup.sh installs both wheels")
  else()
    set(FULGUR_WITH_CUDA ON)
    set(FULGUR_CUDA_INCLUDE "${_cuda_include}")
    if(EXISTS "${_site}/nvidia/nccl/include/nccl.h")
      set(FULGUR_WITH_NCCL ON)
      set(FULGUR_NCCL_INCLUDE "${_site}/nvidia/nccl/include")
    endif()
    if(NOT TARGET fulgur::torch_cuda)
      add_library(fulgur::torch_cuda INTERFACE IMPORTED GLOBAL)
      target_compile_options(fulgur::torch_cuda INTERFACE "SHELL:-idirafter \"${_cuda_include}\"")
      if(FULGUR_WITH_NCCL)
        target_compile_options(fulgur::torch_cuda INTERFACE "SHELL:-idirafter \"${_site}/nvidia/nccl/include\"")
      endif()
      target_link_libraries(fulgur::torch_cuda INTERFACE fulgur::torch
        "-Wl,--no-as-needed" "${_torch_root}/lib/libtorch_cuda.so" "${_torch_root}/lib/libc10_cuda.so" "${_cudart}" "-Wl,--as-needed")
      foreach(_lib cudnn nccl cusparselt nvshmem)
        if(EXISTS "${_site}/nvidia/${_lib}/lib")
          target_link_options(fulgur::torch_cuda INTERFACE "-Wl,-rpath-link,${_site}/nvidia/${_lib}/lib")
        endif()
      endforeach()
    endif()
  endif()
endif()
message(STATUS "LibTorch: ${FULGUR_TORCH_ROOT} (CUDA: ${FULGUR_WITH_CUDA}, NCCL: ${FULGUR_WITH_NCCL})")
if(DEFINED FULGUR_TORCH_ROOT_AT_BUILD)
  # An installed Fulgur has what it was built with.
elseif(NOT FULGUR_WITH_CUDA)
  message(STATUS "CUDA is left out, so programs compute on the CPU only: ${_no_cuda}")
elseif(NOT FULGUR_WITH_NCCL)
  message(STATUS "NCCL is left out, so `ddp` on GPUs needs `process_group_backend: gloo`, which goes through the host: no ${_site}/nvidia/nccl/include/nccl.h. "
    "The wheel nvidia-nccl-cu13 contains it; FULGUR_LIBTORCH=cuda scripts/setup.sh installs it")
endif()
