#include "fulgur/strategies/true_precision.h"

#include "fulgur/core/module.h"
#include "fulgur/core/text.h"

namespace fulgur {

// float32 is what layers are made in; a module that keeps a tensor in another format does so on purpose.
void TruePrecision::convert_module(torch::nn::Module& module) {
  if (dtype_ != at::kFloat) convert_floating(module, dtype_);
}

void TruePrecision::convert_input(Batch& batch) {
  if (dtype_ == at::kFloat) return;
  for (auto& [name, value] : batch)
    if (auto* tensor = std::get_if<Tensor>(&value); tensor && tensor->is_floating_point() && tensor->scalar_type() != dtype_)
      *tensor = tensor->to(dtype_);
}

std::shared_ptr<Precision> make_precision(const std::string& name) {
  if (name == "32-true" || name == "32" || name == "float32") return std::make_shared<TruePrecision>(at::kFloat);
  if (name == "64-true" || name == "64" || name == "float64" || name == "double") return std::make_shared<TruePrecision>(at::kDouble);
  throw ConfigError(cat("[strategies.precision] unknown precision '", name, "'. This version has 32-true and 64-true."));
}

}  // namespace fulgur
