#pragma once

#include <functional>
#include <memory>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// Creates a module whose large parameters get no memory: they are on `meta`, and stand for the values that the
/// constructor gives them (`StoredValues`). A strategy that divides the parameters among ranks computes them one unit
/// after the other; `materialize_module` computes all. They are equal, to the bit, to those of a module that is
/// created as usual, and so are the random numbers that the process draws afterwards, for which they are drawn once
/// here. Until then, the values cannot be read, and code that changes them has no effect.
///
/// Parameters of at least 1 MiB in float formats are created so. If `make` does what cannot be done later, such as to
/// read the memory of a parameter (`data_ptr`), to keep a large tensor that is neither a parameter nor a buffer, or to
/// call an operation that LibTorch does not have for `meta`, a warning names it, and the module is created as usual:
/// then `make` has been called twice. Only operations of the calling thread are seen.
FULGUR_API std::shared_ptr<LightningModule> deferred_init(
    const std::function<std::shared_ptr<LightningModule>()>& make);

}  // namespace fulgur
