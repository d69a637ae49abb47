#include "rendezvous.h"

#include <netdb.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "fulgur/strategies/launcher.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::string who(const ProcessPlace& place) {
  return cat("rank ", place.rank, " of ", place.world_size, ", ", place.main_address, ":", place.main_port, ", as ", place.environment, " says");
}

void check_resolves(const ProcessPlace& place) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(place.main_address.c_str(), nullptr, &hints, &found);
  if (error != 0)
    throw DistributedError(cat("[strategies.rendezvous] the host '", place.main_address, "' cannot be resolved: ", gai_strerror(error), " (", who(place),
                               "). Is MASTER_ADDR right?"));
  freeaddrinfo(found);
}

c10::intrusive_ptr<c10d::Store> open_store(const ProcessPlace& place, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.main_port);
  options.isServer = place.rank == 0 && !place.store_is_hosted;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.main_address, options);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (options.isServer)
      throw DistributedError(cat("[strategies.rendezvous] rank 0 cannot listen on port ", place.main_port, ": ",
                                 text.find("EADDRINUSE") != text.npos ? "the port is in use" : text.find("EACCES") != text.npos ? "ports below 1024 need a right that this user lacks"
                                                                                                                                : first_line(text),
                                 " (", who(place), "). Set MASTER_PORT to a free port."));
    throw DistributedError(cat("[strategies.rendezvous] the store of the run cannot be reached in ", format_double(std::chrono::duration<double>(timeout).count()), " s (", who(place),
                               "). Does rank 0 run, and may this machine connect to that port? ", first_line(text)));
  }
}

constexpr const char* kRound = "fulgur/round";

/// The ranks of a run come together in the store, or find that it keeps what is left of an earlier round.
class Meeting {
 public:
  Meeting(const ProcessPlace& place, double timeout_s, Clock::time_point until, c10::intrusive_ptr<c10d::Store> raw)
      : place_(place), timeout_s_(timeout_s), until_(until), raw_(std::move(raw)), named_(place.environment == "torchrun" && place.store_is_hosted) {}

  c10::intrusive_ptr<c10d::Store> run() {
    if (!named_) return come_to("fulgur/" + (place_.environment == "launcher" ? std::to_string(place_.restarts) : std::string("0")));
    // An agent's store outlives rounds, and agents count restarts each for themselves: rank 0 names the round that begins.
    if (place_.rank == 0) {
      const std::string round = cat("fulgur/", ::getpid(), "/", std::chrono::system_clock::now().time_since_epoch().count());
      raw_->set(kRound, round);
      return come_to(round);
    }
    for (std::string over;;) {
      const std::string round = current_round();
      if (round != over)
        if (auto store = come_to(round)) return store;
      over = round;
      pause({0});
    }
  }

 private:
  std::string current_round() const { return raw_->check({kRound}) ? raw_->get_to_str(kRound) : std::string(); }

  /// Nothing where that round is not, or no longer, the one that this rank is to be in.
  c10::intrusive_ptr<c10d::Store> come_to(const std::string& round) {
    const bool may_be_over = named_ && place_.rank != 0;
    if (round.empty()) return {};
    auto store = c10::make_intrusive<c10d::PrefixStore>(round, raw_);
    const std::string world = std::to_string(place_.world_size), told = store->compareSet("world", "", world);
    if (told != world) {
      if (may_be_over) return {};
      throw DistributedError(cat("[strategies.rendezvous] every rank must be told the same number of processes; another rank says ", told, ", this one says ", world, " (", who(place_),
                                 ")."));
    }
    if (store->add(cat("here/", place_.rank), 1) != 1) {
      if (may_be_over) return {};
      throw DistributedError(cat("[strategies.rendezvous] every rank must have a number of its own; ", place_.rank, " came twice (", who(place_), "). Is RANK set for each process?"));
    }
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < place_.world_size; ++rank) missing.push_back(rank);
    while (true) {
      std::erase_if(missing, [&](int64_t rank) { return store->check({cat("here/", rank)}); });
      if (missing.empty()) {
        if (!named_) return store;
        // Only a rank 0 that lives says this: all may have been here and died.
        if (place_.rank == 0) return store->set("go", "1"), store;
        if (store->check({"go"})) return store;
      }
      if (place_.environment == "launcher" && raw_->check({launcher_failure_key(place_.restarts)}))
        throw DistributedError(cat("[strategies.rendezvous] another process of the run failed before all came together (", who(place_), ")."));
      if (may_be_over && current_round() != round) return {};
      pause(missing.empty() ? std::vector<int64_t>{0} : missing);
    }
  }

  void pause(const std::vector<int64_t>& missing) {
    if (Clock::now() > until_) {
      std::vector<std::string> names;
      for (const int64_t rank : missing) names.push_back(std::to_string(rank));
      throw DistributedError(cat("[strategies.rendezvous] ", place_.world_size - static_cast<int64_t>(missing.size()), " of ", place_.world_size, " ranks joined, missing: ", join(names), " (",
                                 who(place_), ", waited ", format_double(timeout_s_), " s). Do all processes run, and reach that address?"));
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(200));
  }

  const ProcessPlace& place_;
  const double timeout_s_;
  const Clock::time_point until_;
  const c10::intrusive_ptr<c10d::Store> raw_;
  const bool named_;
  std::chrono::milliseconds pause_{1};
};

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  check_resolves(place);
  const auto raw = open_store(place, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000)));
  try {
    return Meeting(place, timeout_s, until, raw).run();
  } catch (const DistributedError&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(cat("[strategies.rendezvous] the store of the run was lost while ranks came together (", who(place), "): ", first_line(error.what())));
  }
}

}  // namespace fulgur::detail
