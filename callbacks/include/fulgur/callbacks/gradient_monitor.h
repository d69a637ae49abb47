#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

namespace detail {
class LateNumbers;
}

/// For what GradientMonitor logs a norm: the whole network, or also each layer or each parameter.
enum class NormDetail { total, layer, parameter };
constexpr auto enum_names(NormDetail) {
  return std::to_array<EnumName<NormDetail>>(
      {{NormDetail::total, "total"}, {NormDetail::layer, "layer"}, {NormDetail::parameter, "parameter"}});
}

/// Logs norms of gradients and weights, how far a step moves the weights, and histograms, and counts gradients that are
/// not finite. The names are those of Lightning's `grad_norm`: `grad_2.0_norm/first`, `grad_2.0_norm_total`.
///
/// It reads the gradients in `on_before_optimizer_step`: of the whole accumulation window, exchanged between ranks,
/// divided by the loss scale, and not yet clipped. With master weights, gradients and weights are the float32 copies. A
/// step does not wait for the device: flags of gradients that are not finite stay there, and are read later.
class FULGUR_API GradientMonitor final : public Callback {
 public:
  struct FULGUR_API Options {
    Interval every{50, Interval::Unit::steps};
    NormDetail norms = NormDetail::layer;
    double norm_type = 2.0;
    bool weight_norms = true;
    bool update_ratios = true;
    bool gradient_histograms = false;
    bool weight_histograms = false;
    bool count_nonfinite = true;
    std::string group_separator = "/";
    void fields(Fields& f);
  };

  /// Throws a ConfigError for an interval of length 0.
  explicit GradientMonitor(Options options);
  ~GradientMonitor() override;

  StateTree state() const override;
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void on_train_start(RunContext& run) override;
  void on_before_optimizer_step(RunContext& run, Optimizer& optimizer) override;
  void on_before_zero_grad(RunContext& run, Optimizer& optimizer) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  /// Prints which gradients were not finite, if any. Warns if no step was logged in a run that has a folder.
  void on_train_end(RunContext& run) override;
  /// Reports which gradients were not finite, unless a warning has named some: they may be the cause.
  void on_exception(RunContext& run, const std::exception& error) override;
  bool saves_on_exception() const override { return false; }

  /// Parameters whose gradient was not finite in some step, with the number of these steps. Waits for the device.
  std::map<std::string, int64_t> nonfinite_counts() const;

 private:
  /// The parameters of one optimizer, as it steps them; those without elements are left out.
  struct Watched {
    const Optimizer* optimizer = nullptr;
    size_t parameters = 0;     // of the optimizer
    std::string total_suffix;  // if there are several optimizers
    std::vector<std::string> names;
    std::vector<Tensor> weights;
    Tensor counts;                          // int64, on the device: steps in which the gradient was not finite
    int64_t at_batch = -1;                  // the last batch in which the optimizer stepped
    std::vector<Tensor> before, gradients;  // copies, in a step that is logged
    std::vector<Tensor> weight_norms;
  };
  using Counts = std::map<std::string, int64_t>;
  static Counts counts_of(const Counts& loaded, const std::vector<Watched>& watched);
  Watched& watched(RunContext& run, const Optimizer& optimizer);
  void name_weights(RunContext& run, Watched& of) const;
  bool is_due(RunContext& run);
  /// Logs what is known after the step.
  void end_step(RunContext& run);
  void count(Watched& of) const;
  void log_gradients(RunContext& run, Watched& of) const;
  void log_weights(RunContext& run, Watched& of) const;
  void log_updates(RunContext& run, Watched& of) const;
  void send_histograms(RunContext& run, const Watched& of) const;
  /// Logs `norms` under `prefix`, by parameter or layer, and their total.
  void log_norms(RunContext& run, const std::string& prefix, const std::string& total_suffix,
                 const std::vector<std::string>& names, const std::vector<Tensor>& norms) const;
  /// The norm of each group of parameters that is logged, with its name; the last one is the total.
  std::vector<std::pair<std::string, Tensor>> grouped(const std::vector<std::string>& names,
                                                      const std::vector<Tensor>& norms) const;
  void warn_of(RunContext& run, const Tensor& number);
  void warn_of_nothing_logged(RunContext& run) const;

  Options options_;
  IntervalTrigger trigger_;
  std::vector<Watched> watched_;
  Counts loaded_;                          // of a checkpoint, if no device has them yet
  std::optional<StateTree> loaded_state_;  // of that checkpoint: a filter may pass no step after it
  // The same before a state was loaded in this run: a batch that fails is undone, and may be what is to be reported.
  Counts loaded_before_;
  std::vector<Watched> watched_before_;
  std::unique_ptr<detail::LateNumbers> late_;
  std::optional<double> resumed_at_;
  bool due_ = false, warned_ = false;
  bool has_logged_ = false;  // a step, in this process
  bool pending_ = false;     // a step that is logged is under way
  int64_t step_before_ = 0;  // `global_step` before it
  int64_t decided_at_ = -1;  // the batch for which `due_` was decided
};

}  // namespace fulgur
