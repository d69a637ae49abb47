#include "distributed/rendezvous.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/system/stop_signal.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/launcher.h"
#include "launch/listening_socket.h"
#include "launch/no_name_lookups.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;

std::string who(const ProcessPlace& place) {
  return cat("rank ", place.rank, " of ", place.world_size, ", ", place.main_address, ":", place.main_port, ", as ",
             place.environment, " says");
}

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// The store's first exchange has no timeout, and the port may be held by a program that does not respond. The waiting
// thread then ends with the process.
StorePtr connect_store(const std::string& address, const c10d::TCPStoreOptions& options) {
  const auto opened = std::make_shared<std::promise<StorePtr>>();
  std::future<StorePtr> store = opened->get_future();
  start_thread("strategies.rendezvous", "Start fewer ranks, or use fewer threads.", [opened, address, options] {
    try {
      const NoNameLookups quick;
      opened->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      opened->set_exception(std::current_exception());
    }
  }).detach();
  const auto until = Clock::now() + options.timeout;
  while (store.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    if (const int signal = stop_signal(); signal != 0) throw Interrupted(signal);
    if (Clock::now() > until)
      throw std::runtime_error("The listener there does not answer as a store: another program may hold the port.");
  }
  return store.get();
}

StorePtr open_store(const ProcessPlace& place, double timeout_s) {
  c10d::TCPStoreOptions options;
  options.isServer = place.rank == 0 && !place.store_is_hosted;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  options.port = static_cast<std::uint16_t>(place.main_port);
  try {
    std::string address;
    if (options.isServer) {
      const ListeningSocket socket =
          listen_on(place.main_address, place.main_port, place.local_world_size == place.world_size);
      options.masterListenFd = socket.fd;
      address = socket.address;
    } else {
      // A refused client of the store retries only after a second.
      address = wait_for_listener(place.main_address, place.main_port, timeout_s);
    }
    return connect_store(address, options);
  } catch (const Interrupted&) {
    throw;
  } catch (const DistributedError& error) {
    throw DistributedError(cat(error.what(), " (", who(place), ")"));
  } catch (const std::exception& error) {
    throw DistributedError(
        cat("[strategies.rendezvous] the store of the run cannot be reached in ", format_double(timeout_s), " s (",
            who(place), "). Is rank 0 running, and can this machine connect to that port? ", first_line(error.what())));
  }
}

/// The stores in which this process has met others. A run's store is kept for later runs (`fit`, then `test`): rank 0
/// could not listen on the port again, and the other ranks would have to detect when it does.
struct KnownStore {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t meetings = 0;
};

std::mutex g_stores_mutex;

// By address, port and rank: threads may be ranks.
std::map<std::string, KnownStore>& stores() {
  static auto& all = *new std::map<std::string, KnownStore>;  // never destroyed: its threads run until the process ends
  return all;
}

std::string key_of(const ProcessPlace& place) { return cat(place.main_address, ":", place.main_port, "/", place.rank); }

KnownStore store_for(const ProcessPlace& place, double timeout_s) {
  const std::string key = key_of(place);
  {
    const std::lock_guard lock(g_stores_mutex);
    const auto found = stores().find(key);
    if (found != stores().end()) return {found->second.store, ++found->second.meetings};
  }
  KnownStore opened{open_store(place, timeout_s)};
  const std::lock_guard lock(g_stores_mutex);
  stores().insert_or_assign(key, opened);
  return opened;
}

void forget_store(const ProcessPlace& place) {
  const std::lock_guard lock(g_stores_mutex);
  stores().erase(key_of(place));
}

constexpr const char* kRound = "fulgur/round";
// What the key that ends a meeting says: all ranks have come, or the number of the signal that has stopped one of them.
constexpr const char* kAllHere = "here";

/// Ranks of a run meet in the store, or find in it the remains of an earlier round.
class Meeting {
 public:
  /// `number` counts the runs of this process: all ranks have the same number.
  Meeting(const ProcessPlace& place, double timeout_s, Clock::time_point until, c10::intrusive_ptr<c10d::Store> raw,
          int64_t number)
      : place_(place),
        timeout_s_(timeout_s),
        until_(until),
        raw_(std::move(raw)),
        number_(number),
        named_(place.environment == "torchrun" && place.store_is_hosted) {}

  c10::intrusive_ptr<c10d::Store> run() {
    if (!named_) return come_to(cat("fulgur/", place_.environment == "launcher" ? place_.restarts : 0, "/", number_));
    // An agent's store outlives rounds, and each agent counts restarts separately: rank 0 names the new round.
    if (place_.rank == 0) {
      const std::string round =
          cat("fulgur/", ::getpid(), "/", std::chrono::system_clock::now().time_since_epoch().count());
      raw_->set(kRound, round);
      return come_to(round);
    }
    for (std::string over;;) {
      const std::string round = current_round();
      if (round != over)
        if (auto store = come_to(round)) return store;
      over = round;
      if (const int got = stop_signal(); got != 0) throw Interrupted(got);
      pause([] { return std::vector<int64_t>{0}; });
    }
  }

 private:
  std::string current_round() const { return raw_->check({kRound}) ? raw_->get_to_str(kRound) : std::string(); }

  /// Nullptr if that round is not, or no longer, the one that this rank must join.
  c10::intrusive_ptr<c10d::Store> come_to(const std::string& round) {
    const bool may_be_over = named_ && place_.rank != 0;
    if (round.empty()) return {};
    auto store = c10::make_intrusive<c10d::PrefixStore>(round, raw_);
    const std::string world = std::to_string(place_.world_size), recorded = store->compareSet("world", "", world);
    if (recorded != world) {
      if (may_be_over) return {};
      throw DistributedError(
          cat("[strategies.rendezvous] every rank must be given the same number of processes; another rank says ",
              recorded, ", this one says ", world, " (", who(place_), ")."));
    }
    if (store->add(cat("here/", place_.rank), 1) != 1) {
      if (may_be_over) return {};
      throw DistributedError(cat("[strategies.rendezvous] every rank must have its own number; ", place_.rank,
                                 " is used twice (", who(place_), "). Is RANK set for each process?"));
    }
    // The last rank to arrive signals that all have arrived. A rank waits for that one key: waiting for each rank would
    // make the requests of a start-up quadratic in their number.
    if (store->add("count", 1) == place_.world_size) store->compareSet("all", "", kAllHere);
    // Only a living rank 0 gives the signal: in an earlier round, all ranks may have joined and died.
    const char* const signal = named_ && place_.rank != 0 ? "go" : "all";
    bool may_leave = true;
    while (true) {
      if (store->check({signal})) {
        const std::string verdict = store->get_to_str(signal);
        if (named_ && place_.rank == 0) store->set("go", verdict);
        if (verdict != kAllHere) throw Interrupted(parse_whole<int>(verdict).value_or(SIGTERM));
        return store;
      }
      // A rank that was asked to stop leaves, unless all have come: these stop together, in the run.
      if (const int got = stop_signal(); got != 0 && may_leave) {
        if (store->compareSet("all", "", std::to_string(got)) != kAllHere) throw Interrupted(got);
        may_leave = false;
        continue;
      }
      if (place_.environment == "launcher" && raw_->check({launcher_failure_key(place_.restarts)}))
        throw DistributedError(cat("[strategies.rendezvous] another process of the run failed before all had joined (",
                                   who(place_), ")."));
      if (may_be_over && current_round() != round) return {};
      pause([&] { return missing_in(*store); });
    }
  }

  std::vector<int64_t> missing_in(c10d::Store& store) const {
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < place_.world_size; ++rank)
      if (!store.check({cat("here/", rank)})) missing.push_back(rank);
    // All arrived, but rank 0 has not signalled: it is gone.
    if (missing.empty()) missing.push_back(0);
    return missing;
  }

  void pause(const std::function<std::vector<int64_t>()>& find_missing) {
    if (Clock::now() > until_) {
      const std::vector<int64_t> missing = find_missing();
      std::vector<std::string> names;
      for (const int64_t rank : missing) names.push_back(std::to_string(rank));
      throw DistributedError(cat("[strategies.rendezvous] ", place_.world_size - static_cast<int64_t>(missing.size()),
                                 " of ", place_.world_size, " ranks joined, missing: ", join(names), " (", who(place_),
                                 ", waited ", format_double(timeout_s_),
                                 " s). Are all processes running, and can they reach that address?"));
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(200));
  }

  const ProcessPlace& place_;
  const double timeout_s_;
  const Clock::time_point until_;
  const c10::intrusive_ptr<c10d::Store> raw_;
  const int64_t number_;
  const bool named_;
  std::chrono::milliseconds pause_{1};
};

}  // namespace

c10::intrusive_ptr<c10d::Store> meet_in(const c10::intrusive_ptr<c10d::Store>& store, const ProcessPlace& place,
                                        double timeout_s, int64_t number) {
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  return Meeting(place, timeout_s, until, store, number).run();
}

c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s) {
  const auto begin = Clock::now();
  const KnownStore known = store_for(place, timeout_s);
  const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
  try {
    return meet_in(known.store, place, timeout_s - waited_s, known.meetings);
  } catch (const DistributedError&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    forget_store(place);
    throw DistributedError(cat("[strategies.rendezvous] the store of the run was lost while ranks were joining (",
                               who(place), "): ", first_line(error.what())));
  }
}

}  // namespace fulgur::detail
