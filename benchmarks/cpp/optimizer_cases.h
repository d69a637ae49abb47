// C3: parameters, gradients and the loop that times steps; peers/c3_torch.py is the same in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"

namespace bench {

constexpr double kRate = 1e-3, kDecay = 0.01, kMomentum = 0.9;
constexpr int kWarmups = 2;

/// Makes an optimizer of a kind (AdamW, Adam, SGD) for parameters that have their gradients; gives its step.
using MakeStep =
    std::function<std::function<void()>(const std::string& kind, const std::vector<at::Tensor>& parameters)>;

inline std::vector<double> some_of(const std::vector<at::Tensor>& parameters) {
  std::vector<double> values;
  double sum = 0;
  for (const at::Tensor& p : parameters) sum += p.detach().sum(at::kDouble).item<double>();
  values.push_back(sum / static_cast<double>(parameters.size()));
  for (const size_t i : {size_t{0}, parameters.size() / 2, parameters.size() - 1})
    for (int64_t k = 0; k < 8; ++k) values.push_back(parameters[i].detach()[k].item<double>());
  return values;
}

/// `--cases`: kind:tensors:elements:steps, separated by commas.
inline void run_cases(const Arguments& arguments, const MakeStep& make_step) {
  prepare();
  at::Tensor values, gradients;
  for (const auto& [name, tensor] :
       fulgur::read_safetensors(arguments.text("inputs") + "/parameters.safetensors").tensors)
    (name == "values" ? values : gradients) = tensor;
  nlohmann::json report = {{"cases", nlohmann::json::object()}, {"parameters", nlohmann::json::object()}};
  std::istringstream list(arguments.text("cases"));
  for (std::string text; std::getline(list, text, ',');) {
    std::istringstream fields(text);
    std::string kind, number;
    std::getline(fields, kind, ':');
    int64_t sizes[3] = {};  // tensors, elements, steps
    for (int64_t& size : sizes) {
      std::getline(fields, number, ':');
      size = std::stoll(number);
    }
    std::vector<at::Tensor> parameters;
    for (int64_t i = 0; i < sizes[0]; ++i) {
      const double scale = 1 + static_cast<double>(i) / 1024;
      at::Tensor p = values.narrow(0, 0, sizes[1]) * scale;
      p.requires_grad_();
      p.mutable_grad() = gradients.narrow(0, 0, sizes[1]) * scale;
      parameters.push_back(p);
    }
    const auto step = make_step(kind, parameters);
    auto samples = nlohmann::json::array();
    for (int64_t i = 0; i < kWarmups + sizes[2]; ++i) {
      Laps laps;
      laps.stamp();
      step();
      laps.stamp();
      if (i >= kWarmups) samples.push_back(laps.samples()[0]);
    }
    const std::string name = kind + " " + std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]);
    report["cases"][name] = samples;
    report["parameters"][name] = some_of(parameters);
  }
  write_report(arguments, report);
}

}  // namespace bench
