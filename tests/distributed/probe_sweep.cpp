// Computes each operation of a sweep between layers that a plan divides, and writes the losses and the gradients.
#include <ATen/ops/linspace.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fulgur/checkpoint/safetensors.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/core/text/text.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "width_operations.h"

namespace {

using fulgur::Batch;
using fulgur::cat;
using fulgur::Tensor;

constexpr int64_t kInputs = 5, kWidth = 24, kSize = 3;

// Different in all elements, and the same in all processes.
Tensor numbers(at::IntArrayRef sizes, double step) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::linspace(1, static_cast<double>(count), count, at::kDouble) * step).sin().view(sizes);
}

class ProbeSweep : public fulgur::LightningModule {
 public:
  ProbeSweep() {
    up_ = register_module("up", torch::nn::Linear(kInputs, kWidth));
    fused_ = register_module("fused", torch::nn::Linear(kInputs, 3 * kWidth));
    down_ = register_module("down", torch::nn::Linear(kWidth, kInputs));
    one_ = register_parameter("one", at::ones({1}) * 0.75);
    rows_ = register_parameter("rows", numbers({6}, 0.7));
    width_ = register_parameter("width", numbers({kWidth}, 0.3));
  }

  fulgur::TensorPlan tensor_plan() const override {
    const fulgur::FusedPart part{.outputs = kWidth, .units = kWidth / kSize, .unit = "heads"};
    return {{.pattern = "up", .split = fulgur::TensorSplit::column},
            {.pattern = "fused", .split = fulgur::TensorSplit::column, .parts = {part, part, part}},
            {.pattern = "down", .split = fulgur::TensorSplit::row}};
  }

  fulgur::StepOutput training_step(const Batch&, int64_t) override {
    const auto same = [](const Tensor& value) { return value; };
    sweep("2", {6, kInputs}, up_, same, same, 1, width_sweep::operations(2, 1));
    sweep("3", {2, 3, kInputs}, up_, same, same, 2, width_sweep::operations(3, 2));
    for (const int64_t size : {kSize, 2 * kSize}) {
      const auto heads = [size](const Tensor& value) { return value.view({2, 3, -1, size}).transpose(1, 2); };
      const auto joined = [](const Tensor& value) { return value.transpose(1, 2).flatten(2); };
      // With four ranks, each has one of the larger heads.
      const std::string name = size == kSize ? "4" : "4 of few heads";
      sweep(name, {2, 3, kInputs}, up_, heads, joined, 1, width_sweep::operations(4, 1));
      sweep(name, {2, 3, kInputs}, up_, heads, joined, 1, width_sweep::operations_on_heads());
    }
    sweep("fused", {2, 3, kInputs}, fused_, same, same, 2, width_sweep::operations_on_fused());
    fulgur::write_safetensors(std::filesystem::path(cat("width_", global_rank(), ".safetensors")), found_, texts_);
    const Tensor x = numbers({6, kInputs}, 0.9);
    const Tensor both = down_(up_(x)) + down_(fused_(x).chunk(3, -1)[1]);
    return at::mse_loss(both, x) + (one_ * rows_.sum() * width_.sum()).sum();
  }

 private:
  template <class Before, class After>
  void sweep(const std::string& shape, at::IntArrayRef sizes, torch::nn::Linear& first, const Before& before,
             const After& after, int64_t divided, const std::vector<width_sweep::Operation>& operations) {
    for (const auto& operation : operations) {
      const std::string name = cat(shape, "/", operation.name);
      const Tensor x = numbers(sizes, 0.9).set_requires_grad(true);
      try {
        const Tensor h = before(first(x));
        std::vector<int64_t> of_rows = h.sizes().vec(), of_width(of_rows.size(), 1);
        of_rows[static_cast<size_t>(divided)] = 1;
        of_width[static_cast<size_t>(divided)] = -1;
        const int64_t width = divided == 1 && of_rows.size() == 4 ? kWidth / of_rows[3] : kWidth;
        int64_t count = 1;
        for (const int64_t size : of_rows) count *= size;
        const Tensor rows = rows_.repeat((count + 5) / 6).narrow(0, 0, count).view(of_rows);
        // Each rank has so many elements of what a size of 1 would look like.
        texts_[name] = operation.must && h.size(divided) > 1 ? "must" : "may";
        const Tensor y =
            operation.apply(h, {.one = one_, .rows = rows, .width = width_.narrow(0, 0, width).view(of_width)});
        const Tensor out = down_(after(y));
        add(name, x, at::mse_loss(out, numbers(out.sizes(), 1.7)));
      } catch (const std::exception& error) {
        // Without the frames of an error of LibTorch.
        texts_[name + "/error"] = fulgur::split_text(error.what(), '\n').front();
      }
    }
  }

  // Autograd's own operations are not those of a step.
  void add(const std::string& name, const Tensor& x, const Tensor& loss) {
    const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::DeferredInit);
    std::vector<std::pair<std::string, Tensor>> parameters{{"x", x}};
    for (const auto& item : named_parameters()) parameters.emplace_back(item.key(), item.value());
    std::vector<Tensor> values;
    for (const auto& [of, value] : parameters) values.push_back(value);
    const std::vector<Tensor> gradients =
        torch::autograd::grad({loss}, values, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                              /*allow_unused=*/true);
    found_.emplace_back(name + "/loss", loss.detach());
    for (size_t i = 0; i < gradients.size(); ++i)
      found_.emplace_back(cat(name, "/", parameters[i].first),
                          gradients[i].defined() ? gradients[i].clone() : at::zeros_like(values[i]));
  }

  torch::nn::Linear up_{nullptr}, fused_{nullptr}, down_{nullptr};
  Tensor one_, rows_, width_;
  fulgur::NamedTensors found_;
  std::map<std::string, std::string> texts_;
};

const bool registered_sweep =
    fulgur::Registry<fulgur::LightningModule>::add<ProbeSweep>("ProbeSweep", "Operations between divided layers.");

}  // namespace
