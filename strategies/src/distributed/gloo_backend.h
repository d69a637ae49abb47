#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fulgur::detail {

/// The address of this machine that the others can reach.
struct GlooAddress {
  std::string interface;  ///< not empty: GLOO_SOCKET_IFNAME
  std::string host;       ///< else this address
  std::string text;       ///< and why
};

/// GLOO_SOCKET_IFNAME, or this machine's address on the route to `main_address`.
GlooAddress choose_gloo_address(const std::string& main_address);

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, const GlooAddress& address,
                                                    std::chrono::milliseconds timeout);

}  // namespace fulgur::detail
