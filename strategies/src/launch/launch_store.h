#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/strategies/launcher.h"

namespace fulgur::detail {

/// The store of a run as used by its launchers: node 0's hosts it, those of other nodes are clients. Thread-safe.
class LaunchStore {
 public:
  /// Opens the store, or waits for node 0's. Throws a DistributedError with address and port if that fails.
  explicit LaunchStore(const LaunchOptions& options);
  ~LaunchStore();

  int64_t port() const;
  /// True for the first writer of `key`. This and the following functions throw a DistributedError if the store is
  /// gone.
  bool put_first(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  /// Waits up to 30 s for `key`.
  std::string wait_for(const std::string& key);
  /// Adds to a counter and returns its new value.
  int64_t add(const std::string& key, int64_t amount);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::detail
