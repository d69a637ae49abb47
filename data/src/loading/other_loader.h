#pragma once

#include <optional>
#include <string_view>

#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

enum class LoaderKind { indexed, iterable, combined };

/// The epoch of a loader's state that another kind of loader saved; nullopt if it is one of `kind`. Only the same kind
/// of loader can continue inside that epoch.
inline std::optional<int64_t> epoch_of_other_loader(const StateTree& state, LoaderKind kind) {
  const LoaderKind saved = state.contains("loaders")   ? LoaderKind::combined
                           : state.contains("dataset") ? LoaderKind::iterable
                                                       : LoaderKind::indexed;
  return saved == kind ? std::nullopt : std::optional(state.at("epoch").as_int());
}

/// Throws a CheckpointError if the state that another kind of loader saved in the epoch `other` is inside `epoch`.
inline void refuse_other_loader(const std::optional<int64_t>& other, std::string_view loader, int64_t epoch) {
  if (other != epoch) return;
  throw CheckpointError(cat("[", loader, "] the checkpoint was saved inside epoch ", epoch,
                            ", which another kind of loader was reading (a DataLoader, an IterableLoader or several "
                            "combined): its position means nothing here. Resume with the same kind of loader, or from "
                            "a checkpoint of the end of an epoch."));
}

}  // namespace fulgur
