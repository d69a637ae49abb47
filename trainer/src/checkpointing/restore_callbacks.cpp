#include "checkpointing/restore_callbacks.h"

#include <set>
#include <string>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void load_callback_states(Restoring& r, const StateTree& states) {
  RunState& run = r.run;
  const std::string checkpoint = r.checkpoint->path.string();
  std::set<std::string> left;
  for (const auto& [key, state] : states.as_map()) left.insert(key);
  run.each_callback(LogScope::forbidden, "load_state", [&](Callback& c) {
    const std::string key = c.state_key();
    if (left.erase(key) == 0) return;
    try {
      c.load_state(states.at(key));
    } catch (const std::exception& error) {
      const std::string text = cat("the state of callback ", key, " in ", checkpoint, " does not fit: ", error.what());
      if (run.fn == TrainerFn::fit)
        throw CheckpointError(cat("[trainer.fit] ", text,
                                  "\nResume with the callback as it was when the checkpoint was "
                                  "made, or begin a new run with its weights: --load.weights_only true."));
      log::warn("trainer.callback_state", text + ". It is ignored");
    }
  });
  if (run.fn == TrainerFn::fit && !left.empty())
    log::warn("trainer.callback_state_unused",
              cat(checkpoint, " has the state of callbacks that this run does not have: ",
                  join({left.begin(), left.end()}), ". The checkpoints of this run will not contain it"));
}

}  // namespace fulgur::detail
