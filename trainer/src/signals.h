#pragma once

#include <optional>

namespace fulgur::detail::signals {

/// Catches SIGINT and SIGTERM while it lives: handlers only set a flag, the loop reads it between two batches. A second
/// SIGINT ends the process at once.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

/// The signal that came since the scope began.
std::optional<int> received();

}  // namespace fulgur::detail::signals
