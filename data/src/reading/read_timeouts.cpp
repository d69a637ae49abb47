#include "reading/read_timeouts.h"

#include <algorithm>
#include <chrono>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

void wait_for_batch(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, const ReadTimeouts& patience,
                    const BatchWait& wait) {
  const auto start = Clock::now();
  bool reported = patience.slow_after_s <= 0;
  while (!wait.ready()) {
    const double waited = Seconds(Clock::now() - start).count();
    if (patience.timeout_s > 0 && waited >= patience.timeout_s)
      throw DataError(cat("[data.", wait.loader, "] a batch must be read within timeout_s, ", patience.timeout_s,
                          " s; the run is still waiting for one of the ", wait.set, " set: ", wait.what(),
                          ". Find out what holds up the dataset, or raise timeout_s."));
    if (!reported && waited >= patience.slow_after_s) {
      reported = true;
      const std::string text = cat("the run has been waiting for a batch of the ", wait.set, " set for ",
                                   format_fixed(waited, 1), " s: ", wait.what());
      lock.unlock();
      log::warn("data.slow_batch", text);
      lock.lock();
      continue;
    }
    double next = 3600;
    if (!reported) next = std::min(next, patience.slow_after_s - waited);
    if (patience.timeout_s > 0) next = std::min(next, patience.timeout_s - waited);
    changed.wait_for(lock, Seconds(std::max(next, 1e-4)));
  }
}

void report_slow_read(std::string_view set, double took_s, std::string_view what) {
  log::warn("data.slow_batch", cat("a batch of the ", set, " set took ", format_fixed(took_s, 1), " s to read: ", what,
                                   ". The run waits during that time; num_workers makes it prefetch batches"));
}

}  // namespace fulgur
