// C11: activation checkpointing; peers/c11_torch.py is the same in Python.
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include <unordered_set>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/models/gpt_block.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/nn/saved_tensors_hooks.h"

namespace {

using at::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr int kWarmups = 1;

struct Way {
  std::string title;
  size_t every;
  bool early_stop;
};
const std::vector<Way> kWays = {
    {"none", 0, true}, {"every 2", 2, true}, {"all", 1, true}, {"all, no early stop", 1, false}};

struct MlpBlock : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  explicit MlpBlock(int64_t width) {
    in = register_module("in", torch::nn::Linear(width, 4 * width));
    out = register_module("out", torch::nn::Linear(4 * width, width));
  }
  Tensor forward(const Tensor& x) { return out(at::relu(in(x))); }
};

template <class Block>
class Stack {
 public:
  Stack(std::string kind, const std::string& probed, const Tensors& data,
        const std::vector<std::shared_ptr<Block>>& blocks)
      : kind_(std::move(kind)),
        probed_(probed),
        blocks_(blocks),
        x_(data.at("x").clone().requires_grad_()),
        dy_(data.at("dy")) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < blocks_.size(); ++i)
      for (auto& parameter : blocks_[i]->named_parameters())
        parameter.value().copy_(data.at(kind_ + "." + std::to_string(i) + "." + parameter.key()));
  }

  void run(int64_t steps, nlohmann::json& report) {
    for (int64_t step = 0; step < kWarmups + steps; ++step)
      for (const Way& way : kWays) {
        const std::string name = kind_ + " blocks, " + way.title;
        x_.mutable_grad() = Tensor();
        for (const auto& block : blocks_)
          for (Tensor& parameter : block->parameters()) parameter.mutable_grad() = Tensor();
        bench::Laps laps;
        laps.stamp();
        forward(way).backward(dy_);
        laps.stamp();
        if (step < kWarmups) {
          report["saved"][name] = {saved_bytes(way)};
          report["gradients"][name] = gradients();
          continue;
        }
        auto sample = laps.samples()[0];
        sample["saved_mib"] = report["saved"][name][0].get<double>() / (1 << 20);
        report["cases"][name].push_back(sample);
      }
  }

 private:
  Tensor forward(const Way& way) const {
    Tensor x = x_;
    for (size_t i = 0; i < blocks_.size(); ++i)
      x = way.every > 0 && i % way.every == 0 ? fulgur::nn::checkpoint({.early_stop = way.early_stop}, blocks_[i], x)
                                              : blocks_[i]->forward(x);
    return x;
  }

  int64_t saved_bytes(const Way& way) const {
    std::unordered_set<const void*> seen;
    for (const auto& block : blocks_)
      for (const Tensor& parameter : block->parameters()) seen.insert(parameter.storage().data());
    int64_t bytes = 0;
    const fulgur::nn::SavedTensorsHooks hooks(
        [&](const Tensor& tensor) -> std::any {
          if (seen.insert(tensor.storage().data()).second) bytes += static_cast<int64_t>(tensor.storage().nbytes());
          return tensor.detach();
        },
        [](const std::any& tensor) { return std::any_cast<const Tensor&>(tensor); });
    const Tensor kept = forward(way);
    return bytes;
  }

  std::vector<double> gradients() const {
    std::vector<double> norms = {x_.grad().to(at::kDouble).norm().template item<double>()};
    for (const auto& block : blocks_)
      norms.push_back(block->named_parameters()[probed_].grad().to(at::kDouble).norm().template item<double>());
    return norms;
  }

  std::string kind_, probed_;
  std::vector<std::shared_ptr<Block>> blocks_;
  Tensor x_, dy_;
};

}  // namespace

int main(int count, char** values) {
  return bench::run(count, values, [](const bench::Arguments& arguments) {
    Tensors data;
    for (auto& [name, tensor] : fulgur::read_safetensors(arguments.text("inputs") + "/blocks.safetensors").tensors)
      data.emplace(name, tensor);
    const int64_t layers = arguments.number("layers"), width = data.at("x").size(2), steps = arguments.number("steps");
    std::vector<std::shared_ptr<fulgur::GptBlock>> gpt;
    std::vector<std::shared_ptr<MlpBlock>> mlp;
    for (int64_t i = 0; i < layers; ++i) {
      gpt.push_back(std::make_shared<fulgur::GptBlock>(
          fulgur::GptBlockOptions{.n_embd = width, .n_head = arguments.number("heads")}));
      mlp.push_back(std::make_shared<MlpBlock>(width));
    }
    nlohmann::json report;
    Stack("GPT", "mlp.c_fc.weight", data, gpt).run(steps, report);
    Stack("MLP", "in.weight", data, mlp).run(steps, report);
    bench::write_report(arguments, report);
  });
}
