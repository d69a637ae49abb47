#include "distributed/heartbeat.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <vector>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/text.h"
#include "launch/no_name_lookups.h"

namespace fulgur::detail {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
// A store on a node that is gone gives no answer, and for many minutes no error either.
constexpr auto kAnswerWithin = std::chrono::seconds(5);

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// What the ranks have reported, by rank; empty for one that has not. Two requests, unless one has never reported.
std::vector<std::string> read_beats(c10d::Store& store, int64_t world_size) {
  std::vector<std::string> keys, beats;
  for (int64_t rank = 0; rank < world_size; ++rank) keys.push_back(cat("does/", rank));
  if (store.check(keys)) {
    for (const std::vector<uint8_t>& beat : store.multiGet(keys)) beats.emplace_back(beat.begin(), beat.end());
    return beats;
  }
  for (const std::string& key : keys) beats.push_back(store.check({key}) ? store.get_to_str(key) : "");
  return beats;
}

}  // namespace

Heartbeat::Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t world_size)
    : rank_(rank), world_size_(world_size) {
  {
    const NoNameLookups quick;
    store_ = store->clone();
    report_store_ = store->clone();
  }
  store_->setTimeout(kPatience);
  report_store_->setTimeout(kPatience);
  thread_ = start_thread("strategies.heartbeat", "Start fewer ranks, or use fewer threads.", [this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::string Heartbeat::now() const {
  const char* const exchange = exchange_.load(std::memory_order_relaxed);
  return cat(failed_.load(std::memory_order_relaxed) ? "failed in " : "", exchange ? exchange : "",
             exchange ? " in " : "", what_.load(std::memory_order_relaxed), " at step ",
             steps_.load(std::memory_order_relaxed));
}

void Heartbeat::say_failed() noexcept {
  failed_ = true;
  try {
    beat();
  } catch (const std::exception&) {
    // The store is gone, and so are all readers of this report.
  }
}

void Heartbeat::beat() { store_->set(cat("does/", rank_), cat(format_double(now_s()), "|", now())); }

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    try {
      beat();
    } catch (const std::exception&) {
      // The store is gone, so the run is over, which the run's thread will notice.
      return;
    }
    lock.lock();
    wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ends_; });
  }
}

std::string Heartbeat::report() const {
  const char* const silent = "\n  the run's store does not answer, so the state of the other ranks is unknown";
  std::string text;
  try {
    const auto answer = std::make_shared<std::promise<std::vector<std::string>>>();
    std::future<std::vector<std::string>> coming = answer->get_future();
    // A thread that gets no answer ends with the process.
    start_thread("strategies.heartbeat", "Start fewer ranks, or use fewer threads.",
                 [answer, store = report_store_, world_size = world_size_] {
                   try {
                     answer->set_value(read_beats(*store, world_size));
                   } catch (...) {
                     answer->set_exception(std::current_exception());
                   }
                 })
        .detach();
    if (coming.wait_for(kAnswerWithin) != std::future_status::ready) return silent;
    const std::vector<std::string> beats = coming.get();
    for (int64_t rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) {
        text += cat("\n  rank ", rank, " (this one): ", now());
        continue;
      }
      const std::string& beat = beats[static_cast<size_t>(rank)];
      const size_t mark = beat.find('|');
      if (mark == std::string::npos)
        text += cat("\n  rank ", rank, ": has never reported");
      else
        text += cat("\n  rank ", rank, ": ", beat.substr(mark + 1), ", reported ",
                    format_fixed(std::max(now_s() - std::stod(beat), 0.0), 1), " s ago");
    }
    text += "\n  (ranks report once a second; since then they may have done more)";
  } catch (const std::exception&) {
    text += silent;
  }
  return text;
}

}  // namespace fulgur::detail
