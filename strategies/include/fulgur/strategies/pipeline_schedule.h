#pragma once

#include <array>

#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// The order in which the ranks of a pipeline compute the micro-batches of a step. All orders compute the same
/// gradients. With p ranks, m micro-batches and v stages per rank, a rank waits for this fraction of a step:
enum class PipelineSchedule {
  gpipe,                     ///< all forwards, then all backwards: (p - 1) / (m + p - 1); keeps m activations
  one_forward_one_backward,  ///< the same fraction; keeps p activations at most
  interleaved,               ///< several stages per rank, in turns: (p - 1) / (v m + p - 1)
  zero_bubble,               ///< fills the wait with gradients of weights: (p - 1) / (3 m + p - 1) if m >= p
};
constexpr auto enum_names(PipelineSchedule) {
  return std::to_array<EnumName<PipelineSchedule>>({{PipelineSchedule::gpipe, "gpipe"},
                                                    {PipelineSchedule::one_forward_one_backward, "1f1b"},
                                                    {PipelineSchedule::interleaved, "interleaved_1f1b"},
                                                    {PipelineSchedule::zero_bubble, "zero_bubble"}});
}

}  // namespace fulgur
