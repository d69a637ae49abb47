#include "launch/listening_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "fulgur/core/system/stop_signal.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void no_port(int64_t port, const std::string& place, int error) {
  const char* advice =
      error == EADDRINUSE
          ? "Another program uses it: choose another port (MASTER_PORT), or, on a single node, none to get a free one."
      : error == EACCES
          ? "Ports below 1024 need privileges that this user does not have: choose a higher port (MASTER_PORT)."
          : "Choose another port (MASTER_PORT).";
  throw DistributedError(cat("[strategies.store] port ", port, " of ", place,
                             " cannot be opened for the store of the run: ", std::strerror(error), ". ", advice));
}

/// Tries one address; returns 0 or the error.
int try_connect(const addrinfo& address, Clock::time_point deadline) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (fd < 0) return errno;
  int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    // A host that is down does not respond: retry every few seconds.
    const auto left =
        std::min<int64_t>(5000, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count());
    struct pollfd waiting {
      fd, POLLOUT, 0
    };
    socklen_t size = sizeof error;
    if (::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left, 1))) == 1)
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    else
      error = ETIMEDOUT;
  }
  ::close(fd);
  return error;
}

std::unique_ptr<addrinfo, void (*)(addrinfo*)> resolve(const std::string& address, int64_t port, int& unknown) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  unknown = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {unknown == 0 ? found : nullptr, [](addrinfo* list) {
            if (list) ::freeaddrinfo(list);
          }};
}

std::string as_number(const addrinfo& address) {
  char text[NI_MAXHOST] = {};
  ::getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool is_loopback_address(const addrinfo& address) {
  if (address.ai_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
  const uint32_t number = ntohl(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr);
  return number >> 24 == IN_LOOPBACKNET;
}

/// A socket that listens at this address, or the error.
struct Bound {
  ListeningSocket socket;
  int error = 0;
};

Bound bind_to(const sockaddr* address, socklen_t size) {
  const int fd = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {.socket = {}, .error = errno};
  // The port of a launch that has just ended may be reused at once. One socket serves both families if it is on all
  // interfaces of a machine that has IPv6.
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_storage got{};
  socklen_t got_size = sizeof got;
  if (::bind(fd, address, size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&got), &got_size) != 0) {
    const int error = errno;
    ::close(fd);
    return {.socket = {}, .error = error};
  }
  const uint16_t port = got.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(got).sin6_port
                                                  : reinterpret_cast<sockaddr_in&>(got).sin_port;
  return {.socket = {.fd = fd, .port = ntohs(port), .address = {}}, .error = 0};
}

ListeningSocket listen_everywhere(int64_t port) {
  sockaddr_in6 all{};
  all.sin6_family = AF_INET6;
  all.sin6_addr = in6addr_any;
  all.sin6_port = htons(static_cast<uint16_t>(port));
  Bound bound = bind_to(reinterpret_cast<const sockaddr*>(&all), sizeof all);
  if (bound.error == EAFNOSUPPORT) {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    ipv4.sin_addr.s_addr = htonl(INADDR_ANY);
    ipv4.sin_port = htons(static_cast<uint16_t>(port));
    bound = bind_to(reinterpret_cast<const sockaddr*>(&ipv4), sizeof ipv4);
  }
  if (bound.error != 0) no_port(port, "this machine", bound.error);
  bound.socket.address = "127.0.0.1";
  return bound.socket;
}

}  // namespace

ListeningSocket listen_on(const std::string& address, int64_t port, bool on_one_node) {
  int unknown = 0;
  const auto found = resolve(address, port, unknown);
  if (unknown != 0)
    throw DistributedError(
        cat("[strategies.store] the store of the run listens at MASTER_ADDR, which must be known to this "
            "machine; '",
            address, "' cannot be resolved: ", ::gai_strerror(unknown),
            ". Set it to an address of this machine that the others can reach."));
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    // Other nodes cannot reach it, as if a machine has the name of its host there (127.0.1.1 in /etc/hosts).
    if (!on_one_node && is_loopback_address(*one) && as_number(*one) != address) continue;
    Bound bound = bind_to(one->ai_addr, one->ai_addrlen);
    if (bound.error == 0) {
      bound.socket.address = as_number(*one);
      return bound.socket;
    }
    // The address may be that of a service in front of this machine, which forwards the port.
    if (bound.error != EADDRNOTAVAIL && bound.error != EAFNOSUPPORT) no_port(port, as_number(*one), bound.error);
  }
  const ListeningSocket everywhere = listen_everywhere(port);
  log::warn("strategies.store_on_all_interfaces",
            cat("the store of the run listens on port ", everywhere.port,
                " of all interfaces of this machine, because '", address,
                "' (MASTER_ADDR) is not the address of one that other nodes can reach. Set it to such an address, or "
                "let a firewall "
                "protect the port"));
  return everywhere;
}

std::string wait_for_listener(const std::string& address, int64_t port, double timeout_s) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  std::string reason;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
    int unknown = 0;
    const auto found = resolve(address, port, unknown);
    // A name that does not exist will not appear later, but a name server may come back.
    if (unknown != 0 && unknown != EAI_AGAIN)
      throw DistributedError(cat("[strategies.store] the address of node 0 must be known to this machine; '", address,
                                 "' cannot be resolved: ", ::gai_strerror(unknown),
                                 ". Set MASTER_ADDR to a name or an address that this machine knows."));
    if (unknown != 0) reason = ::gai_strerror(unknown);
    for (const addrinfo* one = found.get(); one; one = one->ai_next) {
      const int error = try_connect(*one, deadline);
      if (error == 0) return as_number(*one);
      reason = std::strerror(error);
    }
    if (Clock::now() + pause >= deadline) break;
    if (const int signal = stop_signal(); signal != 0) throw Interrupted(signal);
    std::this_thread::sleep_for(pause);
  }
  throw DistributedError(cat(
      "[strategies.store] nothing listens on port ", port, " of '", address, "' after ", format_fixed(timeout_s, 0),
      " s: ", reason,
      ". Start node 0 with the same MASTER_ADDR and MASTER_PORT, and check that no firewall blocks the connection."));
}

}  // namespace fulgur::detail
