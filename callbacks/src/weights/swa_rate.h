#pragma once

#include <cstdint>

#include "fulgur/callbacks/weight_averaging.h"

namespace fulgur::detail {

/// The learning rate of a group `epoch` epochs (from 0) after the start of stochastic weight averaging: it goes from
/// `from` to `to` in `epochs` epochs and then stays there. The formula is that of torch.optim.swa_utils.SWALR.
double swa_rate(double from, double to, int64_t epoch, int64_t epochs, SwaAnnealing annealing);

}  // namespace fulgur::detail
