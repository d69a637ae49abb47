#include "fulgur/strategies/slow_networks.h"

namespace fulgur {

void PowerSgdOptions::fields(Fields& f) {
  f(matrix_approximation_rank, "matrix_approximation_rank",
    "Columns of the factors: more send more bytes, and lose less of a gradient.")
      .at_least(1);
  f(start_step, "start_step", "Steps before it exchange whole gradients: the first gradients are the least alike.")
      .at_least(0);
  f(min_compression_rate, "min_compression_rate",
    "Matrices that the factors do not make smaller by more than this factor are exchanged whole, as vectors are.")
      .greater_than(0);
  f(use_error_feedback, "use_error_feedback",
    "Adds what a step has lost to the gradient of the next one. It takes as much memory as the gradients.");
  f(warm_start, "warm_start", "Starts from the factors of the last step, instead of random ones.");
}

void OuterOptimizerOptions::fields(Fields& f) {
  f(lr, "lr", "Its learning rate; 1 without momentum is the plain average.").greater_than(0);
  f(momentum, "momentum", "Its momentum.").at_least(0).less_than(1);
  f(nesterov, "nesterov", "Whether the momentum is Nesterov's.");
}

void LocalSgdOptions::fields(Fields& f) {
  f(period, "period", "Optimizer steps from one average of the weights to the next.").required().at_least(1);
  f(start_step, "start_step", "Until this many optimizer steps are done, gradients are averaged in each step as usual.")
      .at_least(0);
  f(group_size, "group_size",
    "Ranks in a row that average their gradients in each step. 1: each trains alone; auto: those of a node.")
      .at_least(1);
  f(outer_optimizer, "outer_optimizer",
    "Makes a step over the change of the averaged weights (DiLoCo). null: all take the average.");
}

}  // namespace fulgur
