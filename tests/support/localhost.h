#pragma once

#include <netdb.h>

namespace fulgur::test {

/// True if the name `localhost` has an address, which torchrun relies on: a machine without /etc/hosts has none.
inline bool localhost_resolves() {
  addrinfo* found = nullptr;
  if (::getaddrinfo("localhost", nullptr, nullptr, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

}  // namespace fulgur::test
