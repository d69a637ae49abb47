# An overlay port: it builds the source tree in which it is.
#   Torch_DIR=FOLDER/torch/share/cmake/Torch vcpkg install fulgur --overlay-ports=packaging/vcpkg --triplet x64-linux-dynamic
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
if(NOT DEFINED ENV{Torch_DIR})
  message(FATAL_ERROR "fulgur needs LibTorch 2.11, which is no port: set the environment variable Torch_DIR to its folder share/cmake/Torch "
    "(a wheel of Python contains it as torch/share/cmake/Torch).")
endif()
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DTorch_DIR=$ENV{Torch_DIR}"
    # Some headers have no target, and are found in the folder of all ports.
    "-DCMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES=${CURRENT_INSTALLED_DIR}/include"
    -DFULGUR_BUILD_EXAMPLES=OFF
    -DFULGUR_BUILD_TESTS=OFF
    -DFULGUR_SIMULATED_CUDA=OFF
    -DFULGUR_WARNINGS_AS_ERRORS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/fulgur)
vcpkg_copy_tools(TOOL_NAMES trainer AUTO_CLEAN)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
