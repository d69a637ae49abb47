#include "print.h"

#include <cstdio>

namespace fulgur::cli {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace fulgur::cli
