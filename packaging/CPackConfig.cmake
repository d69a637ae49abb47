# Packs a folder with CPack. scripts/package.sh includes it after it has set KIND (tarball or deb), NAME, VERSION, MACHINE, STAGE (the
# folder), OUTPUT and, for Debian packages, DEPENDS, SECTION, DESCRIPTION and more. A package is made of an installation that relocate.py
# has changed, so CPack's own installation of a build is not used.
set(CPACK_PACKAGE_NAME "${NAME}")
set(CPACK_PACKAGE_VERSION "${VERSION}")
set(CPACK_PACKAGE_VENDOR "Fulgur")
set(CPACK_PACKAGE_CONTACT "The developers of Fulgur <fulgur@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Training orchestrator for C++ on LibTorch")
set(CPACK_PACKAGE_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}")
set(CPACK_PACKAGE_DIRECTORY "${OUTPUT}")
set(CPACK_INSTALLED_DIRECTORIES "${STAGE};/")
set(CPACK_INSTALL_CMAKE_PROJECTS "")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_THREADS 0)

set(CPACK_PACKAGE_FILE_NAME "${NAME}-${VERSION}-linux-${MACHINE}")

if(KIND STREQUAL "tarball")
  set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY ON)
else()
  # The folder has usr/ in it.
  set(CPACK_PACKAGING_INSTALL_PREFIX "/")
  set(CPACK_SET_DESTDIR OFF)
  set(CPACK_DEBIAN_PACKAGE_NAME "${NAME}")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "${DEPENDS}")
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "${RECOMMENDS}")
  set(CPACK_DEBIAN_PACKAGE_PROVIDES "${PROVIDES}")
  set(CPACK_DEBIAN_PACKAGE_SECTION "${SECTION}")
  set(CPACK_DEBIAN_PACKAGE_PRIORITY "optional")
  set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "${DESCRIPTION}")
  # scripts/package.sh has asked dpkg-shlibdeps, which must not look for LibTorch in a package.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS OFF)
  if(CONTROL_EXTRA)
    set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CONTROL_EXTRA}")
  endif()
endif()
