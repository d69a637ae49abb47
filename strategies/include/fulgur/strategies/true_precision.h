#pragma once

#include "fulgur/core/precision.h"

namespace fulgur {

/// Everything in one floating format: float32 (`32-true`) or float64 (`64-true`).
class FULGUR_API TruePrecision : public Precision {
 public:
  explicit TruePrecision(at::ScalarType dtype) : dtype_(dtype) {}
  std::string name() const override { return dtype_ == at::kDouble ? "64-true" : "32-true"; }
  void convert_module(torch::nn::Module& module) override;
  /// Floating tensors in the run's format; integers and bytes as they are.
  void convert_input(Batch& batch) override;

 private:
  at::ScalarType dtype_;
};

/// The precision of that name, or of one of Lightning's aliases (`32`, `float32`, `64`, …). Throws a ConfigError that
/// lists the names.
FULGUR_API std::shared_ptr<Precision> make_precision(const std::string& name);

}  // namespace fulgur
