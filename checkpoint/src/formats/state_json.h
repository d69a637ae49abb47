#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// How deep a state may be nested.
inline constexpr int kMaxStateDepth = 256;

/// True for a map that would be read as something else if written unchanged.
bool looks_like_a_word(const StateTree::Map& map);

/// Tensors of a state, each under its own name: its path (`callbacks.Ema.weight`), with `#2` appended if taken.
class StateTensors {
 public:
  /// Returns the name.
  std::string add(const std::string& place, const Tensor& tensor);
  const NamedTensors& tensors() const { return tensors_; }

 private:
  NamedTensors tensors_;
  std::set<std::string, std::less<>> names_;
};

/// The tree at `place` as one line of JSON. What JSON cannot express becomes an object with one key: a tensor
/// `{"__tensor__": name}`, a non-finite number `{"__float__": "nan"}` (or its bits in hexadecimal), and a map that
/// looks like one of these `{"__map__": {…}}`. Throws a CheckpointError that names the place of a string that is not
/// UTF-8.
std::string encode_state(const StateTree& tree, const std::string& place, StateTensors& tensors);

using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// Contents of state.json.
struct DecodedState {
  StateTree optimizers, state;
};

/// Parses state.json; the optimizers only if `parts` includes them. Throws a CheckpointError, also for a tensor that is
/// not in the given maps.
DecodedState decode_state(std::string_view json, CheckpointParts parts, const TensorMap& optimizer_tensors,
                          const TensorMap& state_tensors);

}  // namespace fulgur::detail
