#pragma once

#include <optional>

namespace fulgur::detail::signals {

/// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 while it lives: handlers only set a flag, the loop reads it between two
/// batches. A second SIGINT ends the process at once, and so does a SIGTERM or SIGHUP two seconds after the first
/// signal: a rank may wait in vain for another. SIGPIPE and SIGXFSZ are ignored: writing to a closed pipe, or
/// beyond a limit on the size of files, is an error, not the end.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

/// True once for SIGUSR1: a checkpoint is wanted, and the run goes on.
bool take_save_request();
/// The signal that came since the scope began.
std::optional<int> received();

}  // namespace fulgur::detail::signals
