#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/strategies/launcher.h"

namespace fulgur::detail {

/// The store of a run as its launchers use it: node 0's keeps it, those of other nodes are its clients. Any thread
/// may use it.
class LaunchStore {
 public:
  /// Opens the store, or waits for node 0's. Throws a DistributedError with address and port where that fails.
  explicit LaunchStore(const LaunchOptions& options);
  ~LaunchStore();

  int64_t port() const;
  /// True for the first who writes `key`. This and what follows throws a DistributedError where the store is gone.
  bool put_first(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Waits up to 30 s for `key`.
  std::string wait_for(const std::string& key);
  /// Adds to a counter and gives its new value.
  int64_t add(const std::string& key, int64_t amount);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::detail
