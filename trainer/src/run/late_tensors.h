#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fulgur/core/state_tree.h"

namespace fulgur::detail {

class Run;

/// Which tensors of a run only its optimizers write, so that a checkpoint's copies of them may be made while the next
/// forward and backward run: the parameters that optimizers step, and what the optimizers keep for them.
///
/// A forward (`nn::Embedding` with `max_norm`) or a callback may write them all the same. Each such write counts up the
/// tensor's version, so that it is seen; from then on that tensor is not late.
class LateTensors {
 public:
  explicit LateTensors(Run& run) : run_(run) {}

  /// Begins to watch the parameters, so that what the first step shows is known before the first save.
  void watch_parameters();
  /// The late tensors of a checkpoint with these optimizer states.
  void collect(const StateTree& optimizers);
  /// Whether a tensor is late, which is watched then.
  bool take(const Tensor& tensor);
  /// Ends the watch. Empty, or the name of a tensor that was written in it.
  std::string end_watch();
  bool watches() const { return !watched_.empty(); }

 private:
  void add(const StateTree& state);
  void watch(const Tensor& tensor);
  std::string name_of(const Tensor& tensor) const;

  Run& run_;
  // By their memory: a state may hold another tensor of the same.
  std::unordered_set<const void*> late_, written_;
  std::vector<std::pair<Tensor, int64_t>> watched_;  // with their versions
};

}  // namespace fulgur::detail
