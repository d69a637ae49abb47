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
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void no_port(int64_t port, bool everywhere, int error) {
  const char* advice =
      error == EADDRINUSE
          ? "Another program uses it: choose another port (MASTER_PORT), or, on a single node, none to get a free one."
      : error == EACCES
          ? "Ports below 1024 need privileges that this user does not have: choose a higher port (MASTER_PORT)."
          : "Choose another port (MASTER_PORT).";
  throw DistributedError(cat("[strategies.store] port ", port, everywhere ? " of this machine" : " of 127.0.0.1",
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

}  // namespace

bool is_ipv4_loopback(const std::string& address) {
  int unknown = 0;
  const auto found = resolve(address, 0, unknown);
  bool all = found != nullptr;
  for (const addrinfo* one = found.get(); one; one = one->ai_next)
    all &= one->ai_family == AF_INET &&
           ntohl(reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr.s_addr) == INADDR_LOOPBACK;
  return all;
}

ListeningSocket listen_on(int64_t port, bool everywhere) {
  // One socket family serves clients of both if the machine has IPv6; the run's loopback name belongs to IPv4.
  int family = everywhere ? AF_INET6 : AF_INET;
  int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 && everywhere) fd = ::socket(family = AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) no_port(port, everywhere, errno);
  // The port of a launch that has just ended may be reused at once.
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage place{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto& any = reinterpret_cast<sockaddr_in6&>(place);
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof any;
  } else {
    auto& any = reinterpret_cast<sockaddr_in&>(place);
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK);
    any.sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof any;
  }
  if (::bind(fd, reinterpret_cast<sockaddr*>(&place), size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&place), &size) != 0) {
    const int error = errno;
    ::close(fd);
    no_port(port, everywhere, error);
  }
  const uint16_t got = family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(place).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(place).sin_port;
  return {fd, ntohs(got)};
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
