#include "fulgur/core/contracts/loader.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void Loader::restart_epoch(int64_t epoch) {
  start_epoch(epoch);
  start_epoch(epoch);
}

StateTree Loader::reshard_state(const StateTree&, int64_t from) const {
  throw CheckpointError(cat("[core.loader] the checkpoint was saved within an epoch that ", from,
                            " processes read, and this loader cannot redistribute the rest of it over another number "
                            "of processes. Resume with ",
                            from, " processes, or override Loader::reshard_state()."));
}

}  // namespace fulgur
