#pragma once

#include "fulgur/core/contracts/precision.h"

namespace fulgur {

/// Computes everything in one floating-point format, float32 or float64.
class FULGUR_API TruePrecision : public Precision {
 public:
  std::string name() const override { return dtype_ == at::kDouble ? "64-true" : "32-true"; }
  void convert_module(torch::nn::Module& module) override;
  /// Converts floating-point tensors to the run's format; integers and bytes are unchanged.
  void convert_input(Batch& batch) override;

 protected:
  explicit TruePrecision(at::ScalarType dtype) : dtype_(dtype) {}

 private:
  at::ScalarType dtype_;
};

/// `32-true`.
class FULGUR_API Float32True final : public TruePrecision {
 public:
  Float32True() : TruePrecision(at::kFloat) {}
};

/// `64-true`.
class FULGUR_API Float64True final : public TruePrecision {
 public:
  Float64True() : TruePrecision(at::kDouble) {}
};

}  // namespace fulgur
