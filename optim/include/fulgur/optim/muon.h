#pragma once

#include <unordered_set>

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for 2-D weights. It equals torch.optim.Muon. All other
/// parameters, and those that `adamw_parameters` names, are stepped by AdamW with the options of `adamw`.
///     b ← μb + (1−μ)g;  u = NS((1−μ)g + μb), without Nesterov NS(b);  θ ← θ − lr·λ·θ;  θ ← θ − lr·s·u
/// NS makes the update nearly orthogonal by `ns_steps` Newton–Schulz steps in bfloat16: X ← aX + (bA + cA²)X, A = XXᵀ,
/// from X = u/‖u‖. s = √max(1, rows/columns), or 0.2·√max(rows, columns) for `match_rms_adamw` (Liu et al. 2025, arXiv
/// 2502.16982), with which a rate tuned for AdamW can be used. Embeddings and the output layer belong to AdamW, so name
/// them.
class FULGUR_API Muon final : public FusedOptimizer {
 public:
  enum class AdjustLr { original, match_rms_adamw };
  friend constexpr auto enum_names(AdjustLr) {
    return std::to_array<EnumName<AdjustLr>>(
        {{AdjustLr::original, "original"}, {AdjustLr::match_rms_adamw, "match_rms_adamw"}});
  }
  struct FULGUR_API AdamwOptions {
    double lr = 1e-3;
    std::vector<double> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0.01;
    void fields(Fields& f);
  };
  struct FULGUR_API Options {
    double lr = 1e-3;
    double weight_decay = 0.1;
    double momentum = 0.95;
    bool nesterov = true;
    std::vector<double> ns_coefficients{3.4445, -4.7750, 2.0315};
    double eps = 1e-7;
    int64_t ns_steps = 5;
    AdjustLr adjust_lr_fn = AdjustLr::original;
    std::vector<std::string> adamw_parameters = {};
    AdamwOptions adamw = {};
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::Adam(groups, options)`.
  Muon(std::vector<ParamGroup> groups, Options options) : Muon(std::move(options)) { attach(std::move(groups)); }
  explicit Muon(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "Muon"; }
  std::optional<double> weight_decay(const ParamGroup& group) const override;
  /// The momentum of the matrices; AdamW's beta does not change.
  std::optional<double> momentum() const override { return options_.momentum; }
  void set_momentum(double momentum) override { options_.momentum = momentum; }

 protected:
  std::vector<std::string> state_names(const Tensor& parameter) const override;
  bool counts_steps(const Tensor& parameter) const override;
  bool takes_found_inf(const Tensor& parameter) const override { return !is_matrix(parameter); }
  bool takes_device_rates() const override { return true; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
  /// Splits each group into matrices and parameters for AdamW.
  std::vector<ParamGroup> arrange(std::vector<ParamGroup> groups) override;

 private:
  bool is_matrix(const Tensor& parameter) const { return matrices_.contains(parameter.unsafeGetTensorImpl()); }
  Tensor orthogonalized(const Tensor& update) const;
  Options options_;
  std::unordered_set<const void*> matrices_;
};

}  // namespace fulgur
