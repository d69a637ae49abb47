#pragma once

#include <cstdint>
#include <string>

namespace fulgur::detail {

/// A bound, listening socket and its port.
struct ListeningSocket {
  int fd = -1;
  int64_t port = 0;
};

/// Binds `port` (0: a free one) on the loopback interface, or on all with `everywhere`. The caller owns the descriptor.
/// Throws a DistributedError that says why it failed.
ListeningSocket listen_on(int64_t port, bool everywhere);

/// True if that name or address resolves to 127.0.0.1 only.
bool is_ipv4_loopback(const std::string& address);

/// Waits until something listens there, and returns the numeric address that answered. Throws a DistributedError with
/// address, port and reason after `timeout_s`, and Interrupted if the process was asked to stop.
std::string wait_for_listener(const std::string& address, int64_t port, double timeout_s);

}  // namespace fulgur::detail
