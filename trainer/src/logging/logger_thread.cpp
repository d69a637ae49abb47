#include "logging/logger_thread.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

Clock::duration clock_time(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

/// Entries that the logger does not have for certain.
struct EntryCount {
  int64_t count = 0;
  std::optional<int64_t> first, last;  ///< steps

  void add(std::optional<int64_t> step, int64_t more = 1) {
    count += more;
    if (!step) return;
    first = std::min(first.value_or(*step), *step);
    last = std::max(last.value_or(*step), *step);
  }
  void add(const EntryCount& other) {
    add(other.first, other.count);
    add(other.last, 0);
  }
  std::string text() const {
    const std::string entries = cat(count, count == 1 ? " entry" : " entries");
    if (!first) return entries;
    return *first == *last ? cat(entries, " of step ", *first) : cat(entries, " of steps ", *first, " to ", *last);
  }
};

size_t media_bytes(const MediaRecord& record) {
  if (const auto* image = std::get_if<ImageRecord>(&record)) return image->pixels.nbytes();
  if (const auto* histogram = std::get_if<HistogramRecord>(&record)) return histogram->values.nbytes();
  if (const auto* text = std::get_if<TextRecord>(&record)) return text->text.size();
  size_t bytes = 0;
  for (const auto& row : std::get<TableRecord>(record).rows)
    for (const TableCell& cell : row)
      bytes += sizeof cell + (std::holds_alternative<std::string>(cell) ? std::get<std::string>(cell).size() : 0);
  return bytes;
}

/// For a failed process of a group: the launcher's grace is 10 s.
LoggerThread::Limits hurried(LoggerThread::Limits limits) {
  limits.end_wait_s = std::min(limits.end_wait_s, 2.5);
  limits.failing_end_wait_s = std::min(limits.failing_end_wait_s, 1.0);
  limits.last_call_s = std::min(limits.last_call_s, 1.5);
  limits.return_s = std::min(limits.return_s, 1.0);
  return limits;
}

/// Loggers with an abandoned thread that has not ended: no other thread may call them.
class AbandonedLoggers {
 public:
  /// Never destroyed, since an abandoned thread may end after the statics of the process.
  static AbandonedLoggers& instance() {
    static AbandonedLoggers& all = *new AbandonedLoggers;
    return all;
  }
  void add(const Logger* logger) {
    const Lock lock(mutex_);
    loggers_.push_back(logger);
  }
  void remove(const Logger* logger) {
    const Lock lock(mutex_);
    std::erase(loggers_, logger);
  }
  bool contains(const Logger* logger) {
    const Lock lock(mutex_);
    return std::find(loggers_.begin(), loggers_.end(), logger) != loggers_.end();
  }

 private:
  std::mutex mutex_;
  std::vector<const Logger*> loggers_;
};

/// The end of a run.
struct Ending {
  RunStatus status;
  LoggerThread::Limits limits;
  bool drops;  ///< what waits
  Clock::time_point since, deadline;
};

}  // namespace

struct LoggerThread::Entry {
  std::function<void(Logger&)> call;
  size_t bytes = 0;
  std::optional<int64_t> step;
  std::chrono::system_clock::time_point logged = std::chrono::system_clock::now();
};

struct LoggerThread::Shared {
  Shared(std::shared_ptr<Logger> of, const Limits& wanted) : logger(std::move(of)), limits(wanted) {}

  const std::shared_ptr<Logger> logger;
  const Limits limits;
  std::thread thread;
  std::mutex mutex;  // of everything that follows
  std::condition_variable changed;
  std::deque<Entry> queue;
  size_t queued_bytes = 0;
  EntryCount unflushed;  // taken by the logger since its last flush
  EntryCount lost;
  std::string losses;  // what was reported of them
  StateTree state = nullptr;
  bool failing = false;
  std::string error;  // of the last failure
  std::optional<Ending> ending;
  std::atomic<bool> must_return = false;
  bool abandoned = false;
  bool blocked = false;  ///< by an abandoned thread of the logger: everything is dropped
  bool started = false;  ///< the logger has taken its first entry
  bool asked = false;    ///< for its state
  bool ended = false;

  bool is_idle() const { return queue.empty() && unflushed.count == 0; }

  /// Calls the logger without the lock. False if it throws.
  template <class Call>
  bool calls(Lock& lock, Call call) {
    lock.unlock();
    std::string what;
    std::optional<StateTree> now;
    bool done = false;
    try {
      call();
      done = true;  // whatever state() does: the entry must not be sent twice
      now = logger->state();
    } catch (const std::exception& exception) {
      what = first_line(exception.what());
    } catch (...) {
      what = "an exception of unknown type";
    }
    lock.lock();
    if (now) state = *std::move(now);
    if (!abandoned) report(done, what);
    return done;
  }

  void report(bool done, const std::string& what) {
    if (done && std::exchange(failing, false))
      log::info(cat("[loggers.", logger->state_key(), "] works again; ", queue.size(), " entries wait to be sent"));
    if (done) return;
    failing = true;
    if (must_return && !error.empty()) return;  // it was ended; the error before is the reason
    error = what;
    changed.notify_all();
    log::warn("logger.unreachable", cat("[loggers.", logger->state_key(),
                                        "] what is logged must reach its destination; the last try failed: ", what,
                                        what.ends_with('.') ? "" : ".", " The run continues: up to ", limits.entries,
                                        " entries wait and are sent when it works again."));
  }

  /// Passes on the next entry, or flushes. False if it must be tried again.
  bool advance(Lock& lock) {
    if (queue.empty()) {
      if (!calls(lock, [&] { logger->flush(); })) return false;
      unflushed = {};
      return true;
    }
    // References stay valid while others append.
    Entry& entry = queue.front();
    if (!calls(lock, [&] {
          const LoggedAt time(entry.logged);
          entry.call(*logger);
        }))
      return false;
    started = true;
    unflushed.add(entry.step);
    queued_bytes -= entry.bytes;
    queue.pop_front();
    return true;
  }

  void work() {
    const MustReturn flag(must_return);
    Lock lock(mutex);
    double pause_s = limits.first_pause_s;
    while (!(ending && (is_idle() || Clock::now() >= ending->deadline))) {
      if (is_idle()) {
        changed.wait(lock, [&] { return !is_idle() || ending; });
      } else if (advance(lock)) {
        pause_s = limits.first_pause_s;
        if (ending && !ending->drops) ending->deadline = ending->since + clock_time(ending->limits.end_wait_s);
        changed.notify_all();
      } else {
        const bool was_ending = ending.has_value();
        // At the end, the time that is left is used for more tries.
        changed.wait_for(lock, clock_time(was_ending ? std::min(pause_s, 0.5) : pause_s),
                         [&] { return ending.has_value() != was_ending; });
        pause_s = std::min(2 * pause_s, limits.longest_pause_s);
      }
    }
    // What the logger has taken is not lost because of an entry behind it that fails.
    if (!abandoned && !ending->drops && unflushed.count > 0 && calls(lock, [&] { logger->flush(); })) unflushed = {};
    if (!abandoned) {
      lock.unlock();
      logger->finalize(ending->status);
      lock.lock();
    }
    ended = true;
    if (abandoned) AbandonedLoggers::instance().remove(logger.get());
    changed.notify_all();
  }

  void report_lost() {
    lost.add(unflushed);
    for (const Entry& entry : queue) lost.add(entry.step);
    if (lost.count == 0) return;
    losses = cat("[loggers.", logger->state_key(), "] ", lost.text(), lost.count == 1 ? " was" : " were",
                 " not sent and ", lost.count == 1 ? "is" : "are", " lost",
                 error.empty() ? "" : cat("; the last error: ", error), error.ends_with('.') ? "" : ".");
    log::error(losses);
    lost = {};
  }

  /// From now on the thread has a deadline. Without `waits`, it returns as soon as it can.
  void begin_end(RunStatus status, const Limits& of_end, bool waits) {
    const Lock lock(mutex);
    if (!thread.joinable() || ending) return;
    const double wait_s = !waits ? 0 : failing ? of_end.failing_end_wait_s : of_end.end_wait_s;
    const auto now = Clock::now();
    ending =
        Ending{.status = status, .limits = of_end, .drops = !waits, .since = now, .deadline = now + clock_time(wait_s)};
    if (!waits) must_return = true;
    changed.notify_all();
  }

  /// Ends the thread, or abandons it if it does not leave a call of the logger.
  void wait_for_end() {
    Lock lock(mutex);
    if (!thread.joinable()) return;
    const auto last_call = [&] { return ending->deadline + clock_time(ending->limits.last_call_s); };
    // A logger that works again gets the full time.
    while (!ended && Clock::now() < last_call()) changed.wait_until(lock, last_call());
    must_return = true;
    changed.wait_for(lock, clock_time(ending->limits.return_s), [&] { return ended; });
    if (!ending->drops) report_lost();
    if (!ended) {
      abandoned = true;
      AbandonedLoggers::instance().add(logger.get());
      log::error(cat("[loggers.", logger->state_key(), "] a call did not return in time; the logger is abandoned."));
      thread.detach();
      return;
    }
    lock.unlock();
    thread.join();
  }
};

LoggerThread::LoggerThread(std::shared_ptr<Logger> logger, const Limits& limits)
    : logger_(std::move(logger)), shared_(std::make_shared<Shared>(logger_, limits)) {}

LoggerThread::~LoggerThread() {
  try {
    shared_->begin_end(RunStatus::failed, shared_->limits, /*waits=*/false);
    shared_->wait_for_end();
  } catch (...) {
    // Nothing can be reported.
  }
}

std::string LoggerThread::losses() const {
  const Lock lock(shared_->mutex);
  return shared_->losses;
}

void LoggerThread::add(Entry entry) {
  {
    const Lock lock(shared_->mutex);
    if (shared_->blocked) return;
    if (shared_->ending)
      return log::error(
          cat("[loggers.", logger_->state_key(), "] something that was logged after the end of the run is lost."));
    const bool fits = shared_->queue.size() < shared_->limits.entries &&
                      (shared_->queue.empty() || shared_->queued_bytes + entry.bytes <= shared_->limits.bytes);
    if (!fits) return shared_->lost.add(entry.step);
    shared_->queued_bytes += entry.bytes;
    shared_->queue.push_back(std::move(entry));
  }
  shared_->changed.notify_all();
}

void LoggerThread::start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) {
  if (is_blocked())
    return log::error(cat("[loggers.", logger_->state_key(),
                          "] a call of an earlier run has not returned; nothing of this run is logged."));
  add({.call = [=](Logger& logger) { logger.start(log_dir, resume_step); }, .step = {}});
  if (shared_->thread.joinable()) return;
  shared_->thread = start_thread("trainer.logger", "Use fewer processes, or a logger that writes files.",
                                 [shared = shared_] { shared->work(); });
}

void LoggerThread::log_hyperparams(const ConfigNode& hparams) {
  add({.call = [=](Logger& logger) { logger.log_hyperparams(hparams); }, .step = {}});
}

void LoggerThread::log_metrics(const Metrics& metrics, int64_t step) {
  size_t bytes = sizeof(Entry);
  for (const auto& [name, value] : metrics) bytes += sizeof(Metrics::value_type) + name.size();
  add({.call = [=](Logger& logger) { logger.log_metrics(metrics, step); }, .bytes = bytes, .step = step});
}

void LoggerThread::log_media(const MediaRecord& record, int64_t step) {
  add({.call = [=](Logger& logger) { logger.log_media(record, step); },
       .bytes = sizeof(Entry) + media_bytes(record),
       .step = step});
}

void LoggerThread::log_artifact(const std::filesystem::path& path) {
  add({.call = [path = std::filesystem::absolute(path)](Logger& logger) { logger.log_artifact(path); }, .step = {}});
}

void LoggerThread::after_save_checkpoint(const CheckpointInfo& info) {
  add({.call = [=](Logger& logger) { logger.after_save_checkpoint(info); }, .step = info.global_step});
}

StateTree LoggerThread::state() {
  Lock lock(shared_->mutex);
  if (shared_->thread.joinable() && !std::exchange(shared_->asked, true))
    shared_->changed.wait_for(lock, clock_time(shared_->limits.first_wait_s),
                              [&] { return shared_->started || shared_->failing || shared_->ended; });
  return shared_->state;
}

bool LoggerThread::is_blocked() {
  const Lock lock(shared_->mutex);
  if (AbandonedLoggers::instance().contains(logger_.get())) shared_->blocked = true;
  return shared_->blocked;
}

void LoggerThread::load_state(const StateTree& state) {
  if (!is_blocked()) logger_->load_state(state);
  const Lock lock(shared_->mutex);
  shared_->state = state;
}

void LoggerThread::flush() {
  Lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, clock_time(shared_->limits.end_wait_s),
                            [&] { return shared_->is_idle() || shared_->ended; });
}

void LoggerThread::begin_end(RunStatus status, bool hurries) noexcept {
  try {
    shared_->begin_end(status, hurries ? hurried(shared_->limits) : shared_->limits, /*waits=*/true);
  } catch (...) {
    // Then `finalize` tries again.
  }
}

void LoggerThread::finalize(RunStatus status) noexcept {
  try {
    shared_->begin_end(status, shared_->limits, /*waits=*/true);
    shared_->wait_for_end();
  } catch (...) {
    // If the report cannot be shown, the run still ends normally.
  }
}

}  // namespace fulgur::detail
