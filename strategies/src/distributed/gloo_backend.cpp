// The only file that includes Gloo's headers: Debian's are older than the library inside LibTorch, so only features of
// both are used.
#include "distributed/gloo_backend.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// Connecting a datagram socket sends nothing: it only consults the routing table.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  std::string text;
  for (const addrinfo* item = found; item && text.empty(); item = item->ai_next) {
    const int fd = socket(item->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char name[NI_MAXHOST];
    if (connect(fd, item->ai_addr, item->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0)
      text = name;
    close(fd);
  }
  freeaddrinfo(found);
  return text;
}

}  // namespace

GlooAddress choose_gloo_address(const std::string& main_address) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface && *interface)
    return {.interface = interface, .host = "", .text = cat(interface, " (GLOO_SOCKET_IFNAME)")};
  std::string host = address_towards(main_address);
  if (host.empty())
    throw DistributedError(cat("[strategies.gloo] there is no route from this machine to '", main_address,
                               "'. Name an interface with GLOO_SOCKET_IFNAME."));
  std::string text = cat(host, " (the route to ", main_address, ")");
  return {.interface = "", .host = std::move(host), .text = std::move(text)};
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, const GlooAddress& address,
                                                    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(address.interface.empty()
                                 ? c10d::ProcessGroupGloo::createDeviceForHostname(address.host)
                                 : c10d::ProcessGroupGloo::createDeviceForInterface(address.interface));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
}

}  // namespace fulgur::detail
