# Install rules and the CMake package `fulgur`:
#
#   find_package(fulgur REQUIRED)
#   add_executable(my my.cpp)
#   fulgur_use_pch(my)                               # LibTorch's headers once, not in each file
#   target_link_libraries(my PRIVATE fulgur::main)   # main() and the verbs; fulgur::fulgur for the library alone
#   fulgur_add_simulated_gpu_test(NAME my_gpu_test COMMAND my_test)
option(FULGUR_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})

# libfulgur.so loads libfulgur_cuda.so from its own folder, in the build tree too.
set(_libraries fulgur)
if(TARGET fulgur_cuda)
  list(APPEND _libraries fulgur_cuda)
endif()
set_target_properties(${_libraries} PROPERTIES BUILD_RPATH "$ORIGIN")

# Libraries that a static library links privately are in its interface as well (LINK_ONLY). Programs need only these,
# and an exported interface must not name targets that exist only in the build.
set_property(TARGET fulgur_main PROPERTY INTERFACE_LINK_LIBRARIES fulgur ${CMAKE_DL_LIBS})

if(NOT FULGUR_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fulgur)

# From the program's folder to the libraries; `../lib` except with unusual prefixes.
file(RELATIVE_PATH _to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(trainer PROPERTIES INSTALL_RPATH "$ORIGIN/${_to_libraries}")
set_target_properties(${_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN")
# LibTorch's folders stay in the path, since LibTorch is not installed with Fulgur.
set_target_properties(trainer ${_libraries} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS fulgur fulgur_main EXPORT fulgurTargets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS trainer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET fulgur_cuda)
  # Loaded at run time and never linked, so the CMake package does not contain it.
  install(TARGETS fulgur_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(FULGUR_SIMULATED_CUDA_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/fulgur/simulated_cuda)
if(TARGET simulated_cuda)
  # Only if they were built: building `trainer` alone does not build them.
  get_property(_simulated_libraries GLOBAL PROPERTY FULGUR_SIMULATED_CUDA_LIBRARIES)
  install(TARGETS ${_simulated_libraries} LIBRARY DESTINATION ${FULGUR_SIMULATED_CUDA_INSTALL_DIR} OPTIONAL NAMELINK_SKIP)
  install(PROGRAMS ${FULGUR_SIMULATED_GPU_SCRIPT} DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME fulgur-simulated-gpu)
endif()

file(GLOB _header_dirs LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/*/include/fulgur)
foreach(_dir ${_header_dirs})
  install(DIRECTORY ${_dir} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fulgur/configs FILES_MATCHING PATTERN "*.yaml")
# The data of recipes, at the paths that their commands have in the source tree.
install(PROGRAMS ${PROJECT_SOURCE_DIR}/benchmarks/recipes/make_masks.py ${PROJECT_SOURCE_DIR}/benchmarks/recipes/make_texts.py
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fulgur/benchmarks/recipes)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/fulgur)

install(EXPORT fulgurTargets NAMESPACE fulgur:: DESTINATION ${_package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fulgurConfig.cmake.in ${PROJECT_BINARY_DIR}/fulgurConfig.cmake
  INSTALL_DESTINATION ${_package_dir} PATH_VARS CMAKE_INSTALL_BINDIR FULGUR_SIMULATED_CUDA_INSTALL_DIR)
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fulgurConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/fulgurConfig.cmake
  ${PROJECT_BINARY_DIR}/fulgurConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FulgurLibTorch.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FulgurSimulatedGpu.cmake
  DESTINATION ${_package_dir})
