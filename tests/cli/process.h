#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace fulgur::test {

struct Finished {
  int exit_code = -1;  ///< 128 + signal if one ended the process
  std::string out, err;
};

struct Start {
  std::string program = {};                   ///< empty: the built `trainer`
  std::filesystem::path folder;               ///< where it runs; empty: here
  std::vector<std::string> environment = {};  ///< added: `NAME=value`
  bool close_stdout = false;
  bool broken_pipe = false;      ///< stdout is a pipe that is not read
  int64_t address_space_mb = 0;  ///< limit of its memory; 0: none
  int64_t file_size_kb = 0;      ///< limit of the files that it writes; 0: none
};

/// Runs the built `trainer` and waits for its end.
Finished trainer(const std::vector<std::string>& arguments, const Start& start = {});

/// The built `trainer` while it runs. Whatever happens, it is gone when this is.
class Running {
 public:
  explicit Running(const std::vector<std::string>& arguments, const Start& start = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  int pid() const { return child_; }
  void signal(int number) const;
  bool has_ended();
  /// Waits until `condition` holds; false if the process ended before, or after half a minute.
  bool wait_until(const std::function<bool()>& condition);
  /// What it has written to stderr so far.
  std::string err() const;
  Finished wait();

 private:
  TemporaryFolder output_;
  int child_ = -1;
  std::optional<int> status_;
};

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace fulgur::test
