#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace fulgur::test {

struct Finished {
  int exit_code = -1;  ///< 128 + signal where one ended the process
  std::string out, err;
};

struct Start {
  std::filesystem::path folder;               ///< where it runs; empty: here
  std::vector<std::string> environment = {};  ///< added: `NAME=value`
  bool close_stdout = false;
  bool broken_pipe = false;  ///< stdout is a pipe that nobody reads
  int64_t address_space_mb = 0;  ///< limit of its memory; 0: none
};

/// Runs the built `trainer` and waits for its end.
Finished trainer(const std::vector<std::string>& arguments, const Start& start = {});

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace fulgur::test
