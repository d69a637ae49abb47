#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// Tensors of a run that only its optimizers write, so that a checkpoint's copies of them may be made while the next
/// forward and backward run: the parameters that optimizers step, and the optimizers' state.
///
/// A forward (`nn::Embedding` with `max_norm`) or a callback may write them anyway. Each such write increments the
/// tensor's version, so it is detected; from then on that tensor is not late.
class LateTensors {
 public:
  explicit LateTensors(RunContext& run) : run_(run) {}

  /// Starts watching the parameters, so that writes in the first step are known before the first save.
  void watch_parameters();
  /// The late tensors of a checkpoint with these optimizer states.
  void collect(const StateTree& optimizers);
  /// Whether a tensor is late; if so, it is watched.
  bool take(const Tensor& tensor);
  /// Ends the watch. Returns the name of a tensor that was written during it, or an empty string.
  std::string end_watch();
  bool watches() const { return !watched_.empty(); }

 private:
  void add(const StateTree& state);
  void watch(const Tensor& tensor);
  std::string name_of(const Tensor& tensor) const;

  RunContext& run_;
  // By memory: a state may hold another tensor that shares it.
  std::unordered_set<const void*> late_, written_;
  std::vector<std::pair<Tensor, int64_t>> watched_;  // with their versions
};

}  // namespace fulgur::detail
