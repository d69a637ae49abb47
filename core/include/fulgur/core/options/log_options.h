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
  bool prog_bar = false;                   ///< shown in the progress bar
  bool logger = true;                      ///< sent to the loggers
  std::optional<bool> on_step = {};        ///< by default true in training hooks and false in evaluation hooks
  std::optional<bool> on_epoch = {};       ///< by default false in training hooks and true in evaluation hooks
  Reduce reduce_fx = Reduce::mean;         ///< reduction over the window (step values) and the epoch
  bool sync_dist = false;                  ///< reduced over ranks when the value is read
  bool add_dataloader_idx = true;          ///< appends `/dataloader_idx_i` if there are several evaluation loaders
  std::optional<int64_t> batch_size = {};  ///< weight in a mean; by default the number of samples in the batch
};

/// Named values logged at one point, in order.
using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace fulgur
