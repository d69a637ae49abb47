#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/state_tree.h"

namespace fulgur::detail {

/// How deep a state may be nested.
inline constexpr int kMaxStateDepth = 256;

/// True for a map that would be read as something else if it were written as it is.
bool looks_like_a_word(const StateTree::Map& map);

/// Tensors of a state, each under a name of its own: its place (`callbacks.Ema.weight`), with `#2` where that is taken.
class StateTensors {
 public:
  /// Returns the name.
  std::string add(const std::string& place, const Tensor& tensor);
  const NamedTensors& tensors() const { return tensors_; }

 private:
  NamedTensors tensors_;
  std::set<std::string, std::less<>> names_;
};

/// The tree at `place` as JSON in one line. What JSON has no word for becomes an object with one key: a tensor
/// `{"__tensor__": name}`, a number that is not finite `{"__float__": "nan"}` (or its bits in hexadecimal), and a map
/// that looks like one of these `{"__map__": {…}}`. Throws a CheckpointError that names the place of a text that is not
/// UTF-8.
std::string encode_state(const StateTree& tree, const std::string& place, StateTensors& tensors);

using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// What state.json holds.
struct DecodedState {
  StateTree optimizers, state;
};

/// Reads the text of state.json; the optimizers only where `parts` names them. Throws a CheckpointError, also for a
/// tensor that is not among the given.
DecodedState decode_state(std::string_view json, CheckpointParts parts, const TensorMap& optimizer_tensors,
                          const TensorMap& state_tensors);

}  // namespace fulgur::detail
