#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace fulgur::test {

/// A port of the loopback interface that is not in use now. It is below the ports that the system gives to outgoing
/// connections (from 32768 on), one of which could take it before it is used. Tests that run at the same time have
/// different ports, since their processes have.
inline int free_port() {
  constexpr int kFirst = 10000, kPorts = 22000;
  static int calls = 0;
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kFirst + static_cast<int>((::getpid() * 7LL + calls++) % kPorts);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (is_free) return port;
  }
  throw std::runtime_error("no free port");
}

}  // namespace fulgur::test
