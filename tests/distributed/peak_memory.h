#pragma once

#include "ranks.h"

namespace fulgur::test {

/// What makes the GPT of `peak_without_steps` so small that the peak is that of the processes.
inline const Arguments kAlmostNoModel{"--model.n_layer", "1", "--model.n_embd", "64"};

/// The peak of the resident memory of a rank, in MiB, of a fit that starts and ends without a step (unless `more` sets
/// trainer.max_steps) or a save, with a GPT of 16 blocks of 12 MiB each.
double peak_without_steps(int ranks, const Arguments& more);

}  // namespace fulgur::test
