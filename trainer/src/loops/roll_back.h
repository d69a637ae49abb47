#pragma once

namespace fulgur::detail {

class Run;

/// `on_nonfinite: rollback`: weights, optimizers and schedules of the newest checkpoint again; training continues with
/// the next batch. Throws a NonFiniteError if there is no checkpoint, or if this was done too often. All ranks call it.
void roll_back(Run& run);

}  // namespace fulgur::detail
