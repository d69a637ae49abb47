#pragma once

#include <fstream>
#include <string>

namespace fulgur::test {

/// "pid (name) state parent …" of a process; empty if it is gone. It may go between opening and reading, which an
/// iterator over the stream would throw for.
inline std::string process_stat(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

}  // namespace fulgur::test
