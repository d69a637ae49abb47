#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fulgur/core/text/text.h"

namespace fulgur::test {

/// Two separate network namespaces, as two nodes with a cable between them; removed at the end. Nothing outside can be
/// reached from them.
class TwoNetworks {
 public:
  TwoNetworks() {
    const std::string a = name(0), b = name(1);
    ready_ = run(cat("ip netns add ", a)) && run(cat("ip netns add ", b)) &&
             run(cat("ip link add v0 netns ", a, " type veth peer name v1 netns ", b)) &&
             run(cat("ip -n ", a, " addr add ", kAddress[0], "/24 dev v0")) &&
             run(cat("ip -n ", b, " addr add ", kAddress[1], "/24 dev v1")) &&
             run(cat("ip -n ", a, " link set v0 up && ip -n ", a, " link set lo up")) &&
             run(cat("ip -n ", b, " link set v1 up && ip -n ", b, " link set lo up"));
  }
  ~TwoNetworks() {
    for (const int node : {0, 1}) run(cat("ip netns del ", name(node)));
  }
  TwoNetworks(const TwoNetworks&) = delete;
  TwoNetworks& operator=(const TwoNetworks&) = delete;

  /// False if this machine does not let the test make them (no root, no `ip`).
  bool ready() const { return ready_; }
  static const char* address(int node) { return kAddress[node]; }

  /// Moves the calling process into a node.
  bool enter(int node) const {
    const int fd = ::open(cat("/run/netns/", name(node)).c_str(), O_RDONLY | O_CLOEXEC);
    const bool good = fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0) ::close(fd);
    return good;
  }

  /// Takes the cable away, or puts it back.
  bool plug(bool in) const { return run(cat("ip -n ", name(0), " link set v0 ", in ? "up" : "down")); }

 private:
  static constexpr const char* kAddress[] = {"10.213.77.1", "10.213.77.2"};

  static bool run(const std::string& command) {
    return std::system(cat("{ ", command, "; } >/dev/null 2>&1").c_str()) == 0;
  }
  std::string name(int node) const { return cat("fulgur-", owner_, "-", node); }

  int64_t owner_ = ::getpid();
  bool ready_ = false;
};

}  // namespace fulgur::test
