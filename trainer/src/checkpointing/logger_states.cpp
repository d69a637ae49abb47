#include "checkpointing/logger_states.h"

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

StateTree logger_states(const RunState& run) {
  if (run.loggers_before) return *run.loggers_before;
  StateTree::List states;
  for (const auto& logger : run.log_targets) {
    StateTree state = nullptr;
    // A checkpoint is complete without logger state; a resume then truncates the logger's files by step.
    try {
      state = logger->state();
    } catch (const std::exception& error) {
      log::error(cat("the state of ", logger->state_key(), " is not in the checkpoint: ", error.what()));
    }
    states.push_back(StateTree::map({{"key", logger->state_key()}, {"state", std::move(state)}}));
  }
  return states;
}

}  // namespace fulgur::detail
