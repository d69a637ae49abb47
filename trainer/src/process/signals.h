#pragma once

#include <optional>

namespace fulgur::detail::signals {

/// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 during its lifetime: handlers only set a flag, which the loop reads
/// between two batches. A second SIGINT ends the process at once, and so does a SIGTERM or SIGHUP two seconds after the
/// first signal: a rank may be waiting for another forever. SIGPIPE and SIGXFSZ are ignored: writing to a closed pipe,
/// or beyond a file size limit, is an error that does not end the process.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

/// True once per SIGUSR1: a checkpoint is requested, and the run continues.
bool take_save_request();
/// The signal received since the scope began.
std::optional<int> received();

}  // namespace fulgur::detail::signals
