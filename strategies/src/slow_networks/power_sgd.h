#pragma once

#include <map>
#include <utility>
#include <vector>

#include "distributed/gradient_exchange.h"
#include "distributed/tensor_average.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/strategies/slow_networks.h"

namespace fulgur::detail {

/// Averages gradients over ranks by the factors of PowerSGD: two exchanges a step, whatever the number of parameters.
/// What a step loses, this rank adds to its gradient of the next one. If the exchanged factors are not finite, the
/// gradients become so on all ranks, and what the rank has kept stays as it was.
class PowerSgd {
 public:
  PowerSgd(PowerSgdOptions options, double bucket_cap_mb)
      : options_(options), whole_(bucket_cap_mb, DDPStrategy::Compression::none) {}

  /// Sets the parameters that may be averaged. `loaded`: what `state` has returned, or an empty map. Throws a
  /// CheckpointError if it is of another model.
  void start(const std::vector<NamedParameter>& parameters, const StateTree& loaded);
  /// Averages the gradients of `parameters` when `steps` steps are done. All ranks must call it, with the same
  /// parameters. `may_be_missing`: those without a gradient are as in TensorAverage; else each must have one.
  void average(const std::vector<Tensor>& parameters, bool may_be_missing, int64_t steps, C10dCollectives& ranks);

  /// What a step sends once it has begun: `2 of 6 parameters as factors of rank 1, 1.3 % of the bytes`.
  std::string describe() const;
  /// Whether no matrix is worth it, so that all is sent whole.
  bool has_nothing_to_do() const;
  StateTree state() const;

 private:
  /// What is kept of a parameter between steps.
  struct Memory {
    NamedParameter parameter;
    Tensor error;   ///< [n, m], what the steps so far have lost; undefined: nothing
    Tensor factor;  ///< [m, r], the averaged one of the last step; undefined: none
  };
  struct Factors;
  Memory* memory_of(const Tensor& parameter);
  bool is_worth_it(const Tensor& gradient) const;
  Factors begin(Memory& memory, const Tensor& gradient, int64_t steps);
  void exchange(std::vector<Factors>& matrices, const std::vector<Tensor>& whole, C10dCollectives& ranks);
  /// Random numbers [n, r], the same on all ranks and in all runs.
  const Tensor& spare(int64_t rows, int64_t columns, const Tensor& like);

  PowerSgdOptions options_;
  TensorAverage whole_;
  std::vector<Memory> memories_;
  std::map<std::pair<int64_t, int64_t>, Tensor> spares_;
};

/// Averages gradients with PowerSgd after backward.
class PowerSgdExchange final : public GradientExchange {
 public:
  /// `steps` are the steps that are done when a backward ends.
  PowerSgdExchange(PowerSgd& power, std::vector<NamedParameter> parameters, bool find_unused_parameters,
                   const int64_t& steps, C10dCollectives& ranks)
      : GradientExchange(std::move(parameters)),
        power_(power),
        find_unused_(find_unused_parameters),
        steps_(steps),
        ranks_(ranks) {}
  void before_backward(const Tensor&) override {}
  void after_backward() override;

 private:
  PowerSgd& power_;
  bool find_unused_;
  const int64_t& steps_;
  C10dCollectives& ranks_;
};

}  // namespace fulgur::detail
