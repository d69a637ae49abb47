#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/localhost.h"

namespace fulgur::test {

/// torchrun of the Python that the test machine has for tests; empty if it has none.
inline std::string torchrun() {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (!python) return "";
  const auto program = std::filesystem::path(python).parent_path() / "torchrun";
  return std::filesystem::exists(program) ? program.string() : "";
}

/// Why it cannot be used; empty if it can.
inline std::string without_torchrun(const std::string& program) {
  if (program.empty()) return "no torchrun: FULGUR_TEST_PYTHON names no Python that has it";
  return localhost_resolves() ? ""
                              : "torchrun wants the name localhost, which has no address here (is there /etc/hosts?)";
}

/// True if a test without that launcher is to fail instead of being skipped.
inline bool required(const char* name) {
  const char* all = std::getenv("FULGUR_REQUIRE_LAUNCHERS");
  return all && std::string(all).find(name) != std::string::npos;
}

struct Shell {
  int code;
  std::string out;
};

inline Shell shell(const std::string& command) {
  FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  std::string out;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out};
}

inline std::string quoted(const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& argument : arguments) text += " '" + argument + "'";
  return text;
}

/// Processes at work in that folder; those that ended and were not waited for have none.
inline int processes_in(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path() / "cwd", error) == std::filesystem::canonical(folder) && !error)
      ++count;
  }
  return count;
}

}  // namespace fulgur::test
