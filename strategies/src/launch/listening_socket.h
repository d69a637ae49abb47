#pragma once

#include <cstdint>
#include <string>

namespace fulgur::detail {

/// A bound, listening socket, its port, and the numeric address at which this machine reaches it.
struct ListeningSocket {
  int fd = -1;
  int64_t port = 0;
  std::string address = {};
};

/// Binds `port` (0: a free one) at the first address of `address`, a name or a number, that this machine has. Unless
/// the run is `on_one_node`, a name is not taken for a loopback address, which other nodes could not reach. If no
/// address is left, it listens on all interfaces, with a warning. The caller owns the descriptor. Throws a
/// DistributedError that says why it failed.
ListeningSocket listen_on(const std::string& address, int64_t port, bool on_one_node);

/// Waits until something listens there, and returns the numeric address that answered. Throws a DistributedError with
/// address, port and reason after `timeout_s`, and Interrupted if the process was asked to stop.
std::string wait_for_listener(const std::string& address, int64_t port, double timeout_s);

}  // namespace fulgur::detail
