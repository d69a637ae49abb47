#include "fulgur/strategies/true_precision.h"

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"

namespace fulgur {

// Layers are created in float32; a module that keeps a tensor in another format does so on purpose.
void TruePrecision::convert_module(torch::nn::Module& module) {
  if (dtype_ != at::kFloat) convert_floating(module, dtype_);
}

void TruePrecision::convert_input(Batch& batch) {
  if (dtype_ != at::kFloat) convert_floating(batch, dtype_);
}

[[maybe_unused]] static const bool registered_true_precision =
    Registry<Precision>::add<Float32True>("32-true", "Weights and computation in float32.") &&
    Registry<Precision>::add<Float64True>("64-true", "Weights and computation in float64.") &&
    Registry<Precision>::alias("32", "32-true") && Registry<Precision>::alias("64", "64-true");

}  // namespace fulgur
