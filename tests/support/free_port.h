#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

namespace fulgur::test {

/// A port of the loopback interface that is not in use now. It is below the ports that the system gives to outgoing
/// connections (from 32768 on), one of which could take it before it is used. Of tests that run at the same time, no
/// two get the same: a socket with the port's number in its name, which the system removes with the process, reserves
/// it.
inline int free_port() {
  constexpr int kFirst = 10000, kPorts = 22000;
  static int calls = 0;
  static std::array<int, 64> reserved{};  // the last ones; earlier ports are no longer used
  const auto bound = [](int family, const void* address, socklen_t size) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && ::bind(fd, static_cast<const sockaddr*>(address), size) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
  };
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kFirst + static_cast<int>((::getpid() * 7LL + calls++) % kPorts);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;  // a name that begins with 0 is no file
    const int length = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fulgur-test-port-%d", port);
    const int reservation = bound(
        AF_UNIX, &name, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length)));
    if (reservation < 0) continue;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int listener = bound(AF_INET, &address, sizeof address);
    if (listener < 0) {
      ::close(reservation);
      continue;
    }
    ::close(listener);
    int& oldest = reserved[static_cast<size_t>(calls) % reserved.size()];
    if (oldest > 0) ::close(oldest);
    oldest = reservation;
    return port;
  }
  throw std::runtime_error("no free port");
}

}  // namespace fulgur::test
