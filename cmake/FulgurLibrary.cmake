# libfulgur.so: all components in one shared library.
get_property(_components GLOBAL PROPERTY FULGUR_COMPONENTS)
add_library(fulgur SHARED)
add_library(fulgur::fulgur ALIAS fulgur)
set_target_properties(fulgur PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINKER_LANGUAGE CXX)
foreach(_component ${_components})
  target_sources(fulgur PRIVATE $<TARGET_OBJECTS:${_component}>)
  target_include_directories(fulgur INTERFACE $<BUILD_INTERFACE:$<TARGET_PROPERTY:${_component},INTERFACE_INCLUDE_DIRECTORIES>>)
endforeach()
target_include_directories(fulgur INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(fulgur PUBLIC cxx_std_20)
target_link_libraries(fulgur PUBLIC fulgur::torch
  PRIVATE $<BUILD_INTERFACE:yaml-cpp> $<BUILD_INTERFACE:spdlog::spdlog> $<BUILD_INTERFACE:ZLIB::ZLIB> $<BUILD_INTERFACE:LibZip::LibZip> $<BUILD_INTERFACE:LibArchive::LibArchive> $<BUILD_INTERFACE:PNG::PNG> $<BUILD_INTERFACE:Utf8proc::Utf8proc> $<BUILD_INTERFACE:JPEG::JPEG> $<BUILD_INTERFACE:fulgur_webp> $<BUILD_INTERFACE:fulgur_openmp> Threads::Threads ${CMAKE_DL_LIBS})
# Calls inside the library are bound at link time: its functions are never replaced, and each step makes many calls.
target_link_options(fulgur PRIVATE -Wl,-Bsymbolic-functions)
