# Compiler settings of this project's own code. All code is compiled with -fPIC, programs too, so that one precompiled
# header serves libraries and programs.
add_compile_options(-fPIC)

# g++ spends less time on its garbage collection if that begins only at 1 GiB.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()

add_library(fulgur_warnings INTERFACE)
target_compile_options(fulgur_warnings INTERFACE -Wall -Wextra -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
# g++ 12 warns of overlapping copies in `"text" + std::string` (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(fulgur_warnings INTERFACE -Wno-restrict)
endif()
# In a unity build, g++ treats each source as a header of the file that includes it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
  target_compile_options(fulgur_warnings INTERFACE -Wno-subobject-linkage)
endif()
if(FULGUR_WARNINGS_AS_ERRORS)
  target_compile_options(fulgur_warnings INTERFACE -Werror)
endif()

if(FULGUR_SANITIZE)
  # g++ sees uninitialised members of optionals and variants if sanitizers are on.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(fulgur_warnings INTERFACE -Wno-maybe-uninitialized)
  endif()
  add_compile_options(-fsanitize=${FULGUR_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${FULGUR_SANITIZE})
endif()

# ccache accepts precompiled headers only when it may ignore their time stamps.
find_program(FULGUR_CCACHE ccache)
if(FULGUR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_PCH_EXTSUM=1 ${FULGUR_CCACHE})
  # -fpch-preprocess lets ccache see which precompiled header a file uses.
  add_compile_options(-fpch-preprocess)
endif()
