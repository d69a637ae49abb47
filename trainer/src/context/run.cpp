#include "context/run.h"

#include "checkpointing/nonfinite_actions.h"
#include "process/signals.h"

namespace fulgur::detail {

Run::Run(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn)
    : state(options, components, fn),
      checkpoints(context, host,
                  {.async = state.options.async_checkpoint,
                   .stops_on_error = state.options.on_save_error == OnSaveError::stop}),
      services(state, context, checkpoints,
               {.stop_reason = [this] { return state.stop_reason; },
                .signal = signals::received,
                .take_save_request = signals::take_save_request,
                .save_is_done = [this] { return checkpoints.save_is_done(); }},
               [this](NonFiniteDecision decision) { carry_out(state, services, decision); }) {}

}  // namespace fulgur::detail
