// Where the store of a run listens.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "launch/listening_socket.h"
#include "loggers/warnings.h"
#include "support/expect_error.h"

namespace listening_socket_test {

namespace {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::listen_on;
using fulgur::detail::ListeningSocket;

bool listens(const char* address, int64_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address, &place.sin_addr);
  const bool good = ::connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0;
  ::close(fd);
  return good;
}

}  // namespace

TEST_CASE("the store of a run listens at the address that is given, and at no other") {
  for (const bool on_one_node : {true, false}) {
    const ListeningSocket bound = listen_on("127.0.0.2", 0, on_one_node);
    CHECK(bound.address == "127.0.0.2");
    CHECK(bound.port > 0);
    CHECK(listens("127.0.0.2", bound.port));
    CHECK_FALSE(listens("127.0.0.1", bound.port));
    CHECK_FALSE(listens("127.0.0.3", bound.port));
    ::close(bound.fd);
  }
}

TEST_CASE("the store of a run listens everywhere, and says so, if the address is not one of this machine") {
  const test::CollectedWarnings warnings;
  // 192.0.2.0/24 is for documentation: no machine has it.
  const ListeningSocket bound = listen_on("192.0.2.1", 0, /*on_one_node=*/false);
  CHECK(bound.address == "127.0.0.1");
  CHECK(listens("127.0.0.1", bound.port));
  CHECK(listens("127.0.0.3", bound.port));
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines().front(), ContainsSubstring("strategies.store_on_all_interfaces"));
  ::close(bound.fd);
}

TEST_CASE("the store of a run: a name that cannot be resolved is an error that names MASTER_ADDR") {
  const std::string message =
      test::message_of<DistributedError>([] { listen_on("nowhere.invalid", 0, /*on_one_node=*/false); });
  CHECK_THAT(message, ContainsSubstring("MASTER_ADDR") && ContainsSubstring("'nowhere.invalid' cannot be resolved"));
}

}  // namespace listening_socket_test
