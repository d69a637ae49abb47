#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur {

/// L-BFGS (Liu and Nocedal 1989). It is LibTorch's own class, `torch::optim::LBFGS`, with its state saved. It evaluates
/// the loss up to `max_eval` times in a step and waits for the device at each. It supports one parameter group of one
/// device and dtype.
class FULGUR_API LBFGS final : public Optimizer {
 public:
  enum class LineSearch { strong_wolfe };
  friend constexpr auto enum_names(LineSearch) {
    return std::to_array<EnumName<LineSearch>>({{LineSearch::strong_wolfe, "strong_wolfe"}});
  }
  struct FULGUR_API Options {
    double lr = 1.0;
    int64_t max_iter = 20;
    std::optional<int64_t> max_eval = {};
    double tolerance_grad = 1e-7;
    double tolerance_change = 1e-9;
    int64_t history_size = 100;
    std::optional<LineSearch> line_search_fn = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::LBFGS(groups, options)`.
  LBFGS(std::vector<ParamGroup> groups, Options options) : LBFGS(std::move(options)) { attach(std::move(groups)); }
  explicit LBFGS(Options options);
  ~LBFGS() override;
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "LBFGS"; }
  std::optional<double> weight_decay(const ParamGroup&) const override { return std::nullopt; }

  bool needs_closure() const override { return true; }
  /// `closure` computes the loss and its gradients, starting from undefined gradients.
  Tensor step_closure(const Closure& closure) override;
  /// Throws an Error, since a step needs the closure.
  void step(const std::optional<Tensor>& found_inf = std::nullopt) override;
  /// Throws a CheckpointError also if the parameters are in another order, since the state's vectors are their
  /// concatenation.
  void load_state(const StateTree& state) override;

 protected:
  /// The whole state is stored with the first parameter, as in Python.
  StateTree parameter_state(const Tensor& parameter) const override;
  void load_parameter_state(const Tensor& parameter, const StateTree& state) override;
  void check_parameter_state(const std::string& name, const Tensor& parameter, const StateTree& state) const override;
  void on_attached() override;

 private:
  struct Impl;
  bool is_first(const Tensor& parameter) const;
  Options options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
