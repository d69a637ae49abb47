#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fulgur::detail {

/// The samples of a data set that cannot be read. Thread-safe.
class BadSamples {
 public:
  explicit BadSamples(int64_t most) : most_(most) {}
  bool contains(int64_t index) const;
  /// Adds a sample and names it in a message, once. Throws a DataError that lists all if there are more than `most`.
  void add(int64_t index, const std::string& name, const std::string& reason);
  std::vector<int64_t> indices() const;

 private:
  int64_t most_;
  std::atomic<bool> any_{false};  // so that data sets without bad samples take no lock
  mutable std::mutex mutex_;
  std::map<int64_t, std::string> found_;
};

}  // namespace fulgur::detail
