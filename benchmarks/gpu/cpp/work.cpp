#include "work.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <dlfcn.h>

#include <chrono>
#include <cmath>

#include "fulgur/core/contracts/module.h"

namespace gpu_bench {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t host_waits() {
  static auto* const counter = reinterpret_cast<int64_t (*)()>(dlsym(RTLD_DEFAULT, "fulgur_host_waits"));
  return counter ? counter() : -1;
}

void Stretches::stamp() {
  Mark mark{};
  mark.waits_before = host_waits();
  work_.accelerator->synchronize(0);
  mark.at = wall_seconds();
  mark.waits_after = host_waits();
  marks_.push_back(mark);
}

json Stretches::samples(int64_t steps) const {
  json list = json::array();
  for (size_t i = 1; i < marks_.size(); ++i) {
    json sample = {{"step_s", (marks_[i].at - marks_[i - 1].at) / static_cast<double>(steps)}};
    if (host_waits() >= 0)
      sample["waits"] =
          static_cast<double>(marks_[i].waits_before - marks_[i - 1].waits_after) / static_cast<double>(steps);
    list.push_back(sample);
  }
  return list;
}

void fill_weights(const torch::nn::Module& module, double gain) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  for (auto& [name, value] : fulgur::unique_parameters(module)) {
    if (value.dim() >= 2) {
      const double inputs = static_cast<double>(value.numel() / value.size(0));
      value.copy_(at::randn(value.sizes(), value.options().requires_grad(false)) *
                  (gain > 0 ? gain / std::sqrt(inputs) : 0.02));
    } else if (name.ends_with("bias")) {
      value.zero_();
    }
  }
}

int64_t count_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, value] : fulgur::unique_parameters(module)) count += value.numel();
  return count;
}

std::vector<fulgur::Batch> make_batches(const Case& work) {
  at::manual_seed(2);
  const auto floats = at::TensorOptions(work.device()).dtype(at::kFloat),
             integers = at::TensorOptions(work.device()).dtype(at::kLong);
  const int64_t batch = work.number("batch");
  std::vector<fulgur::Batch> batches;
  for (int64_t i = 0; i < work.number_or("batches", 4); ++i) {
    if (work.values.contains("image")) {
      at::Tensor images = at::randn({batch, 3, work.number("image"), work.number("image")}, floats);
      if (work.text("memory_format", "contiguous") == "channels_last")
        images = images.contiguous(at::MemoryFormat::ChannelsLast);
      batches.push_back({images, at::randint(work.number("classes"), {batch}, integers)});
    } else if (work.values.contains("vocab")) {
      const std::vector<int64_t> sizes{batch, work.number("length")};
      const at::Tensor tokens = at::randint(work.number("vocab"), sizes, integers);
      batches.push_back({tokens, at::randint(work.number("vocab"), sizes, integers)});
    } else {
      const at::Tensor rows = at::randn({batch, work.number("width")}, floats);
      batches.push_back({rows, at::randint(work.number("classes"), {batch}, integers)});
    }
  }
  return batches;
}

}  // namespace gpu_bench
