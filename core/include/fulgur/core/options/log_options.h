#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fulgur {

enum class Reduce { mean, sum, min, max, last };

/// How a value is logged, as an aggregate: `log("loss", loss, {.prog_bar = true})`.
struct LogOptions {
  bool prog_bar = false;                   ///< show in the progress bar
  bool logger = true;                      ///< send to the loggers
  std::optional<bool> on_step = {};        ///< default by hook: true in training, false in evaluation
  std::optional<bool> on_epoch = {};       ///< default by hook: false in training, true in evaluation
  Reduce reduce_fx = Reduce::mean;         ///< over the window (step values) and the epoch
  bool sync_dist = false;                  ///< reduce over ranks when the value is read
  bool add_dataloader_idx = true;          ///< `/dataloader_idx_i` if there are several evaluation loaders
  std::optional<int64_t> batch_size = {};  ///< weight in a mean; default: samples in the batch
};

/// Named values logged at one point, in order.
using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace fulgur
