#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/core/optimizer.h"

namespace fulgur {

/// Base of the optimizers on ATen's fused multi-tensor kernels: keeps state per parameter under Python's names, hands
/// the kernel lists of one device and dtype, and makes state at a parameter's first gradient.
class FULGUR_API FusedOptimizer : public Optimizer {
 public:
  void step(const std::optional<Tensor>& found_inf = std::nullopt) override;

 protected:
  /// What one kernel call works on; all lists are parallel.
  struct Bucket {
    const ParamGroup* group = nullptr;
    std::vector<Tensor> params, grads;
    std::vector<std::vector<Tensor>> state;  ///< one list per state name
    std::vector<Tensor> steps;               ///< float32 scalars: updates done; empty where they are not counted
    std::vector<const std::string*> names;
  };

  /// Names of the state tensors that have the parameter's shape (`exp_avg`, …); may depend on the options.
  virtual std::vector<std::string> state_names() const = 0;
  /// False where the kernel needs no count of updates; then none is kept.
  virtual bool counts_steps() const { return true; }
  /// One kernel call. With `found_inf`, the kernel leaves everything where it is not 0.
  virtual void update(Bucket& bucket, const std::optional<Tensor>& found_inf) = 0;

  StateTree parameter_state(const Tensor& parameter) const override;
  void load_parameter_state(const Tensor& parameter, const StateTree& state) override;
  void check_parameter_state(const std::string& name, const Tensor& parameter, const StateTree& state) const override;
  void on_attached() override;

 private:
  struct State {
    Tensor step;
    std::vector<Tensor> tensors;
  };
  State& state_of(const Tensor& parameter);
  void rebuild();

  std::unordered_map<const void*, State> states_;
  std::vector<Bucket> buckets_;
  std::vector<bool> active_;  ///< which parameters had a gradient when the buckets were built
};

}  // namespace fulgur
