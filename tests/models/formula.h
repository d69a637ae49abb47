#pragma once

#include <ATen/ops/arange.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"

/// The weights and inputs of make_vision_baseline.py.
namespace fulgur::test {

/// Float64 of this shape: 2 u / 10007 - 1 with u = (31 i² + 7919 i + 104729 k) mod 10007 at place i.
inline Tensor by_formula(at::IntArrayRef shape, int64_t k) {
  const Tensor i = at::arange(c10::multiply_integers(shape), at::kLong);
  const Tensor u = (31 * i * i + 7919 * i + 104729 * k).remainder(10007);
  return (2 * u.to(at::kDouble) / 10007 - 1).view(shape);
}

/// The value of parameter number `k` in the order of names.
inline Tensor weight_by_formula(const std::string& name, at::IntArrayRef shape, int64_t k) {
  const Tensor values = by_formula(shape, k);
  if (shape.size() > 1) return values / std::sqrt(static_cast<double>(values.numel()) / static_cast<double>(shape[0]));
  return 0.1 * values + (name.ends_with("weight") ? 1 : 0);
}

/// The module's parameters in the order of their names.
inline std::map<std::string, Tensor> sorted_parameters(const torch::nn::Module& module) {
  std::map<std::string, Tensor> sorted;
  for (const auto& [name, value] : unique_parameters(module)) sorted.emplace(name, value);
  return sorted;
}

/// Converts the module to float64, gives all parameters their values, and returns their names.
inline std::vector<std::string> fill_by_formula(torch::nn::Module& module) {
  convert_floating(module, at::kDouble);
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (auto& [name, value] : sorted_parameters(module)) {
    value.copy_(weight_by_formula(name, value.sizes(), static_cast<int64_t>(names.size())));
    names.push_back(name);
  }
  return names;
}

inline const nlohmann::json& vision_baseline() {
  static const nlohmann::json baseline = [] {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "vision.json");
    return nlohmann::json::parse(file);
  }();
  return baseline;
}

}  // namespace fulgur::test
