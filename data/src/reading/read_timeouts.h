#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace fulgur {

struct ReadTimeouts {
  double timeout_s = 0;      ///< then an error; 0: never
  double slow_after_s = 30;  ///< then a warning; 0: never
  bool is_slow(double took_s) const { return slow_after_s > 0 && took_s >= slow_after_s; }
};

/// A batch that another thread reads.
struct BatchWait {
  std::string_view loader;            ///< class name
  std::string_view set;               ///< name of the set
  std::function<bool()> ready;        ///< both are called with the lock held
  std::function<std::string()> what;  ///< what is being read now, and since when
};

/// Waits on `changed` until the batch is ready. Warns once if that takes longer than `slow_after_s`; throws a DataError
/// after `timeout_s`.
void wait_for_batch(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, const ReadTimeouts& patience,
                    const BatchWait& wait);

/// Warns about a batch that took long on the run's thread.
void report_slow_read(std::string_view set, double took_s, std::string_view what);

}  // namespace fulgur
