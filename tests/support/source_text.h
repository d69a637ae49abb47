#pragma once

#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <sstream>
#include <string>

namespace fulgur::test {

/// A file of the source tree, by its path in it.
inline std::string text_of(const std::string& path) {
  std::ifstream file(FULGUR_SOURCE_DIR "/" + path);
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace fulgur::test
