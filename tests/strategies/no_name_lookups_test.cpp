#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/strategies/launcher.h"
#include "launch/launch_store.h"
#include "launch/no_name_lookups.h"

namespace no_name_lookups_test {

namespace {

/// A name server for this thread that gets queries and answers none.
class SilentNameServer {
 public:
  SilentNameServer() {
    ::res_init();
    before_ = _res;
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&place), size) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&place), &size) == 0);
    _res.nscount = 1;
    _res.nsaddr_list[0] = place;
    _res.retrans = _res.retry = 1;
  }
  ~SilentNameServer() {
    _res = before_;
    ::close(fd_);
  }
  SilentNameServer(const SilentNameServer&) = delete;
  SilentNameServer& operator=(const SilentNameServer&) = delete;

  bool was_asked() const {
    char query[512];
    bool asked = false;
    while (::recv(fd_, query, sizeof query, MSG_DONTWAIT) > 0) asked = true;
    return asked;
  }

 private:
  const int fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct __res_state before_ {};
};

// As LibTorch's store does it: an IPv4 address, as one of IPv6.
void look_up_name() {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr.s6_addr[10] = address.sin6_addr.s6_addr[11] = 0xff;
  address.sin6_addr.s6_addr[12] = 127;
  address.sin6_addr.s6_addr[15] = 1;
  char name[NI_MAXHOST];
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, name, sizeof name, nullptr, 0, 0);
}

}  // namespace

TEST_CASE("no name lookups: no name server is asked while the guard lives, and again after it") {
  const SilentNameServer server;
  {
    const fulgur::detail::NoNameLookups guard;
    look_up_name();
    CHECK_FALSE(server.was_asked());
  }
  look_up_name();
  CHECK(server.was_asked());
}

TEST_CASE("launcher: connecting to the store asks no name server") {
  const SilentNameServer server;
  const fulgur::detail::LaunchStore store({.processes = 1});
  CHECK(store.port() > 0);
  CHECK_FALSE(server.was_asked());
}

}  // namespace no_name_lookups_test
