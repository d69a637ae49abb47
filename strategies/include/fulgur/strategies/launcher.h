#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// Which processes `launch` starts, and what it does if one of them fails.
struct FULGUR_API LaunchOptions {
  int64_t processes = 1;  ///< number of processes per node
  int64_t num_nodes = 1;
  int64_t node_rank = 0;
  std::string main_address = "127.0.0.1";  ///< address of node 0
  int64_t main_port = 0;                   ///< 0 for a free port; required with several nodes
  int64_t max_restarts = 0;                ///< maximum number of restarts of the whole group after failures
  double grace_s = 10;           ///< time for the others to fail by themselves, and again between SIGTERM and SIGKILL
  double start_timeout_s = 300;  ///< time for the launchers of several nodes to find each other
  std::filesystem::path program{};  ///< the running program if empty
  /// Receives the whole message that a rank above 0 passed to `tell_launcher`, once all processes of this node have
  /// ended, unless rank 0 or an earlier rank passed the same. It is for ranks that do not print it themselves.
  std::function<void(int64_t rank, const std::string& message)> show{};
};

/// How a launch ended.
struct FULGUR_API LaunchReport {
  int exit_code = 0;     ///< exit code that this process should return
  int64_t restarts = 0;  ///< number of restarts made
  std::string message;   ///< what failed, with rank, signal or code, and its own message; empty if nothing did
  /// The same without the messages of the ranks, for a console on which the ranks or `LaunchOptions::show` have printed
  /// them.
  std::string console{};
};

/// Starts the processes of this node, `program` with `arguments` (the first is its name), and waits for them to end.
///
/// Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK, GROUP_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, FULGUR_LAUNCHER=1, FULGUR_RESTARTS, and OMP_NUM_THREADS (its share of the processors)
/// unless set; its standard input is empty. On node 0, this process hosts the store of the run. SIGINT, SIGTERM, SIGHUP
/// and SIGUSR1 are forwarded to all processes. None outlives this one, however it ends.
///
/// After the first failure the others have `grace_s` to fail with their own message, then get SIGTERM, then SIGKILL.
/// The report is about the process that died by a signal, or else was the first to exit with a code other than 5 (which
/// means that a peer failed). The exit code is 5 for a signal, else that process's own. Codes 0, 2, 75, 130, 143 never
/// cause a restart.
///
/// Only one launch at a time per process, from a thread that lives as long as the launch. Throws a DistributedError if
/// the port cannot be opened, node 0 cannot be reached, or the program cannot be started.
FULGUR_API LaunchReport launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

/// Passes the error that this process is about to end with to the report of the launcher that started it. It has no
/// effect in other processes. Only the first call counts. Returns true if the launcher will show the whole message
/// (`LaunchOptions::show`).
FULGUR_API bool tell_launcher(std::string_view message) noexcept;

/// Keeps lines about a failure, which the next `tell_launcher` passes on after its message. They replace those that
/// were kept before. Returns true if the launcher will show them; otherwise the caller prints them.
FULGUR_API bool keep_for_launcher(const std::string& lines) noexcept;

/// The key under which `launch` reports a failure in the store of the run, so that processes waiting in it can stop.
FULGUR_API std::string launcher_failure_key(int64_t restarts);

}  // namespace fulgur
