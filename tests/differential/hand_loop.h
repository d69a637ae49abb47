#pragma once

#include <filesystem>

#include "plan.h"

namespace fulgur::test {

/// True if `train_by_hand` can do what the config says.
bool can_train_by_hand(const Plan& config);

/// Trains as the config says, in a loop written by hand with the same parts (loader, net, optimizer, schedule) and
/// without the Trainer; no validation, callbacks but those of accumulation, rows or checkpoints. Keeps its result in
/// `folder/result.0.ckpt`. In a process made for it.
int train_by_hand(const Plan& config, const std::filesystem::path& folder);

}  // namespace fulgur::test
