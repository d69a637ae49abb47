# Precompiled headers that components and tests share: at most one per target.
#   fulgur_pch_tensor  <ATen/core/Tensor.h>   0.4 s a file
#   fulgur_pch_module  <torch/nn/module.h>    2.2 s a file
if(FULGUR_PRECOMPILED_HEADERS)
  foreach(_pair "tensor|<ATen/core/Tensor.h>" "module|<torch/nn/module.h>")
    string(REPLACE "|" ";" _pair "${_pair}")
    list(GET _pair 0 _name)
    list(GET _pair 1 _header)
    file(WRITE ${CMAKE_BINARY_DIR}/pch/${_name}.cpp "")
    add_library(fulgur_pch_${_name} OBJECT ${CMAKE_BINARY_DIR}/pch/${_name}.cpp)
    target_link_libraries(fulgur_pch_${_name} PRIVATE fulgur::torch fulgur_warnings)
    target_precompile_headers(fulgur_pch_${_name} PRIVATE ${_header})
  endforeach()
endif()

# at::parallel_for uses one thread in code that is compiled without OpenMP. Sources that call it are compiled with
# FULGUR_OPENMP_OPTIONS and without precompiled headers; programs and libraries that contain them are linked with
# fulgur_openmp, the library that LibTorch itself uses. clang's code would need another library, and TSan does not see how
# GCC's library orders threads, so with them such code keeps to one thread.
add_library(fulgur_openmp INTERFACE)
set(FULGUR_OPENMP_OPTIONS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT FULGUR_SANITIZE MATCHES "thread")
  file(GLOB _openmp "${FULGUR_TORCH_ROOT}/lib/libgomp*.so*")
  list(APPEND _openmp gomp)  # a LibTorch that uses the system's
  list(GET _openmp 0 _openmp)
  target_link_libraries(fulgur_openmp INTERFACE "${_openmp}")
  set(FULGUR_OPENMP_OPTIONS -fopenmp)
endif()

# fulgur_use_pch(target [tensor|module|none]): `module` by default. For targets of a project that contains this one it does
# what fulgur_use_pch(target) of the installed package does: their compiler options may be others.
function(fulgur_use_pch target)
  get_target_property(source_dir ${target} SOURCE_DIR)
  cmake_path(IS_PREFIX fulgur_SOURCE_DIR "${source_dir}" NORMALIZE is_own)
  if(NOT is_own)
    target_precompile_headers(${target} PRIVATE <torch/nn/module.h> <fulgur/core/contracts/module.h>)
    return()
  endif()
  set(pch module)
  if(ARGC GREATER 1)
    set(pch ${ARGV1})
  endif()
  if(FULGUR_PRECOMPILED_HEADERS AND NOT pch STREQUAL "none")
    target_precompile_headers(${target} REUSE_FROM fulgur_pch_${pch})
  endif()
endfunction()

# fulgur_component(core SOURCES … [DEPENDS core …] [PRIVATE_LIBRARIES …] [PCH tensor|module|none] [NO_TORCH])
# makes the OBJECT library fulgur_core. It sees its own folder and the public headers of DEPENDS and of theirs, nothing
# else: a forbidden include does not compile.
function(fulgur_component name)
  cmake_parse_arguments(arg "NO_TORCH" "PCH" "SOURCES;DEPENDS;PRIVATE_LIBRARIES" ${ARGN})
  set(target fulgur_${name})
  add_library(${target} OBJECT ${arg_SOURCES})
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/include/*.h)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_CURRENT_SOURCE_DIR}/include FILES ${headers})
  endif()
  target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  # Headers for other components, which are not installed.
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/internal)
    target_include_directories(${target} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/internal)
  endif()
  foreach(dep ${arg_DEPENDS})
    # Headers only: objects are linked once, into libfulgur.so.
    target_include_directories(${target} PUBLIC $<TARGET_PROPERTY:fulgur_${dep},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  if(NOT arg_NO_TORCH)
    target_link_libraries(${target} PUBLIC fulgur::torch)
  endif()
  target_link_libraries(${target} PRIVATE fulgur_warnings ${arg_PRIVATE_LIBRARIES})
  if(arg_PCH)
    fulgur_use_pch(${target} ${arg_PCH})
  endif()
  set_property(GLOBAL APPEND PROPERTY FULGUR_COMPONENTS ${target})
endfunction()
