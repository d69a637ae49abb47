#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/core/device/recordable_step.h"
#include "fulgur/optim/parameter_rules.h"

namespace fulgur {

/// Base of the optimizers on ATen's multi-tensor kernels: keeps state per parameter under Python's names, passes the
/// kernel lists with the same device and dtype, and creates state at a parameter's first gradient.
class FULGUR_API FusedOptimizer : public Optimizer, public RecordableStep {
 public:
  void step(const std::optional<Tensor>& found_inf = std::nullopt) override;
  std::optional<int64_t> full_state_bytes() const override;
  bool can_keep_rates_on_device() const override { return takes_device_rates(); }
  void keep_rates_on_device() override;
  bool can_keep_momentum_on_device() const override { return takes_device_momentum() && momentum().has_value(); }
  void keep_momentum_on_device() override;
  void upload_rates() override;
  int64_t layout() const override { return layout_; }
  void set_recording(bool recording) override { recording_ = recording; }
  void load_state(const StateTree& state) override;

 protected:
  FusedOptimizer() = default;
  explicit FusedOptimizer(ParameterRules rules) : rules_(std::move(rules)) {}

  /// The arguments of one kernel call; all lists are parallel.
  struct Bucket {
    const ParamGroup* group = nullptr;
    Tensor lr;               ///< the group's rate on the parameters' device if it is kept there, else undefined
    double uploaded_lr = 0;  ///< the rate that `lr` holds
    Tensor momentum;         ///< a float64 scalar on the device if it is kept there, else undefined
    double uploaded_momentum = 0;
    float count = 0;  ///< with `momentum`, the number of updates of each parameter when the lists were built
    std::vector<Tensor> params, grads;
    std::vector<std::vector<Tensor>> state;  ///< one list per state name
    std::vector<Tensor> steps;  ///< float32 scalars with the number of updates done; empty if they are not counted
    std::vector<const std::string*> names;
    /// Calls `step` with the rate: the tensor on the device, or the group's number.
    template <class Step>
    void with_rate(Step&& step) const {
      if (lr.defined())
        step(lr);
      else
        step(group->lr);
    }
  };

  /// Names of the state tensors with the parameter's shape (`exp_avg`, …); may depend on the options. All parameters of
  /// a group have the same names.
  virtual std::vector<std::string> state_names(const Tensor& parameter) const = 0;
  /// False if the update needs no update counter; then none is kept.
  virtual bool counts_steps(const Tensor& parameter) const;
  /// The value that new state tensors are filled with.
  virtual double initial_state() const { return 0; }
  /// False if `update` cannot make its changes to such parameters depend on `found_inf`; this class then undoes them
  /// from a copy.
  virtual bool takes_found_inf(const Tensor& /*parameter*/) const { return true; }
  /// True if `update` uses the bucket's `lr` when it is defined.
  virtual bool takes_device_rates() const { return false; }
  /// True if `update` uses the bucket's `momentum` when it is defined. All parameters of a bucket then have the same
  /// update count.
  virtual bool takes_device_momentum() const { return false; }
  /// values −= factor · (others + own · values), with one kernel for all; `factor` is a scalar on the device. With
  /// `found_inf`, nothing changes if it is 1.
  static void subtract(at::TensorList values, at::TensorList others, double own, const Tensor& factor,
                       const std::optional<Tensor>& found_inf);
  /// Calls the kernels once. If `found_inf` is given and not 0, the call changes nothing.
  virtual void update(Bucket& bucket, const std::optional<Tensor>& found_inf) = 0;

  StateTree parameter_state(const Tensor& parameter) const override;
  void load_parameter_state(const Tensor& parameter, const StateTree& state) override;
  void check_parameter_state(const std::string& name, const Tensor& parameter, const StateTree& state) const override;
  std::vector<ParamGroup> arrange(std::vector<ParamGroup> groups) override { return rules_.apply(std::move(groups)); }
  void on_attached() override;

 private:
  struct State {
    Tensor step;
    std::vector<Tensor> tensors;
  };
  State& state_of(const Tensor& parameter);
  void forget_lists();
  void rebuild();
  bool collect_gradients();
  void update_unless(Bucket& bucket, const Tensor& found_inf);

  ParameterRules rules_;
  bool rates_on_device_ = false, momentum_on_device_ = false;
  bool recording_ = false;
  int64_t layout_ = 0;
  std::unordered_map<const void*, State> states_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> places_;  ///< bucket of each parameter; none if it had no gradient when they were built
};

}  // namespace fulgur
