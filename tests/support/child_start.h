#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fulgur::test {

/// How a child process begins. It also goes to the fork server, as a file.
struct ChildStart {
  std::vector<std::string> argv;
  std::vector<std::string> environment;  ///< all of it: `NAME=value`
  std::string folder;                    ///< where it runs; empty: here
  std::string out;                       ///< the file of its stdout; empty: closed; `|`: a pipe that is not read
  std::string err;                       ///< the file of its stderr
  int64_t file_size_kb = 0;              ///< limit of the files that it writes; 0: none
};

/// In the child: its files, limit and folder. Ends it with 127 if the folder does not exist.
void apply(const ChildStart& start);
/// Pointers to the words, as exec and main() want them.
std::vector<char*> pointers_to(const std::vector<std::string>& words);

/// Strings, each of which ends with a zero byte: `out`, `err`, `folder`, the limit, the number of arguments, the
/// arguments, and the environment.
void write_child_start(const std::filesystem::path& file, const ChildStart& start);
ChildStart read_child_start(const std::filesystem::path& file);

}  // namespace fulgur::test
