#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/state/rng.h"

namespace fulgur::detail {

/// Random numbers of the layers of a pipeline: other ones on each of its ranks, while hooks draw the same ones on all
/// ranks of a share of the data, since each of them transforms the batch.
class LayerRandom {
 public:
  /// Seeded from the default generator of the CPU, which draws nothing for it, and the place in the pipeline.
  LayerRandom(std::vector<at::Device> devices, int64_t place);
  /// The generators draw those numbers while it exists.
  class Scope {
   public:
    explicit Scope(LayerRandom& of);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    LayerRandom& of_;
    RngGuard outer_;  // restores the numbers of the hooks, after the destructor
  };
  const StateTree& state() const { return state_; }
  void load_state(StateTree state) { state_ = std::move(state); }

 private:
  std::vector<at::Device> devices_;
  StateTree state_ = nullptr;
};

}  // namespace fulgur::detail
