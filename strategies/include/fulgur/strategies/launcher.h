#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// Which processes `launch` starts, and what it does when one of them fails.
struct FULGUR_API LaunchOptions {
  int64_t processes = 1;  ///< on this node, as on each
  int64_t num_nodes = 1;
  int64_t node_rank = 0;
  std::string main_address = "127.0.0.1";  ///< of node 0
  int64_t main_port = 0;                   ///< 0: a free one; several nodes must be given one
  int64_t max_restarts = 0;                ///< times that the whole group is started again after a failure
  double grace_s = 10;              ///< for the others to fail by themselves; then again after SIGTERM, before SIGKILL
  double start_timeout_s = 300;     ///< for the launchers of several nodes to find each other
  std::filesystem::path program{};  ///< empty: the running one
};

/// How a launch ended.
struct FULGUR_API LaunchReport {
  int exit_code = 0;     ///< for this process to return
  int64_t restarts = 0;  ///< that were made
  std::string message;   ///< what failed: rank, signal or code, its own words; empty where nothing did
};

/// Starts the processes of this node, `program` with `arguments` (the first is its name), and waits for their end.
///
/// Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK, GROUP_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, FULGUR_LAUNCHER=1, FULGUR_RESTARTS, and OMP_NUM_THREADS (its share of the processors)
/// where that is not set; its standard input is empty. The store of the run is kept here, on node 0. SIGINT, SIGTERM,
/// SIGHUP and SIGUSR1 go on to all processes. None outlives this one, however it ends.
///
/// After the first failure the others have `grace_s` to fail with words of their own, then SIGTERM, then SIGKILL. The
/// report is about the process that died by a signal, or else left first with another code than 5 (which says that a
/// peer failed). The exit code is 5 for a signal, else that process's own. Codes 0, 2, 75, 130, 143 are never started
/// again.
///
/// One at a time in a process, from a thread that lives as long. Throws a DistributedError where the port or node 0
/// cannot be had, or the program not be started.
FULGUR_API LaunchReport launch(const LaunchOptions& options, const std::vector<std::string>& arguments);

/// In a process that `launch` started: the error that this process is about to end with, for the launcher's report.
/// Does nothing in others. The first call counts.
FULGUR_API void tell_launcher(std::string_view message) noexcept;

/// The key under which `launch` tells of a failure in the store of the run, so that who waits in it can stop waiting.
FULGUR_API std::string launcher_failure_key(int64_t restarts);

}  // namespace fulgur
