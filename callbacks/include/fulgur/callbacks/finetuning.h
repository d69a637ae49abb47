#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// Parameters that `Finetuning` unfreezes.
struct FULGUR_API Unfreezing {
  std::string pattern;
  Interval at = {};
  std::optional<double> lr = {};  ///< of their parameter groups, from then on
  void fields(Fields& f);
};

/// Freezes parameters by name at the start of a fit, and unfreezes them later. A frozen parameter requires no gradient;
/// its optimizer has it from the start, but neither changes it nor has a state for it. A change takes effect at the
/// start of an accumulation window. A resumed fit has the same parameters frozen. When the run ends, parameters that
/// are still frozen are unfrozen.
class FULGUR_API Finetuning final : public Callback, public FollowsWeights {
 public:
  struct FULGUR_API Options {
    std::vector<std::string> freeze = {};
    std::vector<Unfreezing> unfreeze = {};
    bool train_bn = true;
    void fields(Fields& f);
  };

  /// Throws a ConfigError if `freeze` is empty or a position is a time.
  explicit Finetuning(Options options);

  StateTree state() const override;
  /// Throws a CheckpointError if the state has another number of entries in `unfreeze`.
  void load_state(const StateTree& state) override;
  /// What is unfrozen stays so, with its rates, although the optimizers are those of the checkpoint.
  void roll_back(RunContext& run, const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void teardown(RunContext& run, TrainerFn fn) override;
  /// Throws a ConfigError, with similar names, for a pattern that matches no parameter, if no parameter is left to
  /// train, if no optimizer has a parameter that is unfrozen, if a parameter group with a new rate has other parameters
  /// too or a schedule that does not follow the rates of groups, and if the run cannot measure a position.
  void on_train_start(RunContext& run) override;
  void on_train_epoch_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  /// Warns of entries of `unfreeze` whose position has not come, in a run that has a folder.
  void on_train_end(RunContext& run) override;

  /// The names of the parameters that are frozen now.
  std::vector<std::string> frozen() const;

 private:
  struct Frozen {
    std::string name;
    Tensor parameter;
    bool frozen = true;
  };
  /// A layer whose running statistics are frozen too.
  struct FrozenNorm {
    std::string name;  ///< of its running mean
    std::shared_ptr<torch::nn::Module> layer;
    bool frozen = true;
  };

  void find(RunContext& run);
  void check(RunContext& run) const;
  void refuse_to_freeze_all(RunContext& run) const;
  bool matches_any(const std::string& name) const;
  void unfreeze(const std::string& pattern);
  /// Gives each parameter group the rate of the last entry with a rate that has taken effect on it.
  void set_rates(RunContext& run) const;
  void unfreeze_what_is_due(RunContext& run);
  void hold_modes();

  Options options_;
  std::vector<Frozen> frozen_;
  std::vector<FrozenNorm> norms_;
  std::vector<bool> done_;     ///< entries of unfreeze that have taken effect
  std::vector<size_t> order_;  ///< the same, in the order in which they did
  int64_t window_step_ = -1;   ///< the global step at the start of the current accumulation window
  bool loaded_ = false;
};

}  // namespace fulgur
