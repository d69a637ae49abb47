#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fulgur::detail {

/// The address of this machine that the others can reach.
struct GlooAddress {
  std::string interface;  ///< value of GLOO_SOCKET_IFNAME; may be empty
  std::string host;       ///< the address, if `interface` is empty
  std::string text;       ///< the choice and its reason, for messages
};

/// GLOO_SOCKET_IFNAME, or this machine's address on the route to `main_address`.
GlooAddress choose_gloo_address(const std::string& main_address);

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, const GlooAddress& address,
                                                    std::chrono::milliseconds timeout);

}  // namespace fulgur::detail
