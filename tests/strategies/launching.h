#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/launcher.h"
#include "support/free_port.h"
#include "support/process_stat.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// True as soon as `condition` is, looked at every few milliseconds for at most `seconds`.
template <class Condition>
bool comes_true(Condition&& condition, double seconds = 20) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// True if the process is gone, or a zombie that only its parent can see.
inline bool is_gone(pid_t pid) {
  const std::string stat = process_stat(std::to_string(pid));
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos || stat[name_end + 2] == 'Z';
}

/// Launches `launched_program` in its own folder.
class Launching {
 public:
  LaunchOptions options;

  explicit Launching(int64_t processes) {
    options.processes = processes;
    options.grace_s = 0.5;
    options.program = FULGUR_LAUNCHED_PROGRAM;
  }

  std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }

  LaunchReport run(const std::vector<std::string>& actions) const {
    std::vector<std::string> arguments{"launched_program", folder_.path().string()};
    arguments.insert(arguments.end(), actions.begin(), actions.end());
    return launch(options, arguments);
  }

  /// Runs it in a separate process, which leaves with the code and writes the report into `report` + `suffix`. `first`
  /// is called in it before anything else.
  pid_t run_apart(const std::vector<std::string>& actions, const std::string& suffix = "",
                  const std::function<void()>& first = nullptr) const {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    int code = 111;
    try {
      if (first) first();
      const LaunchReport report = run(actions);
      write_text(folder_ / ("report" + suffix), cat("restarts=", report.restarts, "\n", report.message));
      code = report.exit_code;
    } catch (const std::exception& error) {
      write_text(folder_ / ("report" + suffix), error.what());
      code = 112;
    }
    ::_exit(code);
  }

  std::string report_of(const std::string& suffix = "") const { return read_text(folder_ / ("report" + suffix)); }

  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  /// The environment that a rank was started with.
  Environment environment_of(int64_t rank, int64_t restart = 0) const {
    Environment out;
    const std::string text = read_text(folder_ / cat("started.", rank, ".", restart));
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      if (const size_t mark = line.find('='); mark != std::string::npos)
        out.emplace(line.substr(0, mark), line.substr(mark + 1));
      begin = end + 1;
    }
    return out;
  }

  bool wait_for_start(int64_t ranks, int64_t restart = 0) const {
    return comes_true([&] {
      for (int64_t rank = 0; rank < ranks; ++rank)
        if (!has(cat("started.", rank, ".", restart))) return false;
      return true;
    });
  }

  pid_t pid_of(int64_t rank, int64_t restart = 0) const { return std::stoi(environment_of(rank, restart).at("pid")); }

 private:
  TemporaryFolder folder_;
};

/// The exit code of a process that ends within 30 s; else it is killed, and -1.
inline int code_of(pid_t pid) {
  int status = 0;
  if (!comes_true([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, 30)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace fulgur::test
