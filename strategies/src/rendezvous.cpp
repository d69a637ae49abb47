#include "rendezvous.h"

#include <netdb.h>

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

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  check_resolves(place);
  const auto raw = open_store(place, timeout);
  // A store that outlives a restart of the group keeps the keys of before.
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>(cat("fulgur/", place.restarts), raw);
  try {
    const std::string world = std::to_string(place.world_size), told = store->compareSet("world", "", world);
    if (told != world)
      throw DistributedError(cat("[strategies.rendezvous] every rank must be told the same number of processes; another rank says ", told, ", this one says ", world, " (", who(place),
                                 ")."));
    if (store->add(cat("here/", place.rank), 1) != 1)
      throw DistributedError(cat("[strategies.rendezvous] every rank must have a number of its own; ", place.rank, " came twice (", who(place), "). Is RANK set for each process?"));
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < place.world_size; ++rank) missing.push_back(rank);
    auto pause = std::chrono::milliseconds(1);
    while (true) {
      std::erase_if(missing, [&](int64_t rank) { return store->check({cat("here/", rank)}); });
      if (missing.empty()) return store;
      if (place.environment == "launcher" && raw->check({launcher_failure_key(place.restarts)}))
        throw DistributedError(cat("[strategies.rendezvous] another process of the run failed before all came together (", who(place), ")."));
      if (Clock::now() > until) break;
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds(200));
    }
    std::vector<std::string> names;
    for (const int64_t rank : missing) names.push_back(std::to_string(rank));
    throw DistributedError(cat("[strategies.rendezvous] ", place.world_size - static_cast<int64_t>(missing.size()), " of ", place.world_size, " ranks joined, missing: ", join(names), " (",
                               who(place), ", waited ", format_double(timeout_s), " s). Do all processes run, and reach that address?"));
  } catch (const DistributedError&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(cat("[strategies.rendezvous] the store of the run was lost while ranks came together (", who(place), "): ", first_line(error.what())));
  }
}

}  // namespace fulgur::detail
