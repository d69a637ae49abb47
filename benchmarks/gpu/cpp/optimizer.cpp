// Steps of AdamW on parameters whose gradients are there.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>

#include "fulgur/optim/adam.h"
#include "work.h"

namespace gpu_bench {

json run_optimizer(const Case& work) {
  const auto way = work.text("way", "");
  if (way == "captured" && !work.device().is_cuda()) throw NotMeasured("steps are captured on a GPU only");
  at::manual_seed(1);
  const auto floats = at::TensorOptions(work.device()).dtype(at::kFloat);
  std::vector<at::Tensor> parameters;
  int64_t numbers = 0;
  for (const auto& [shape, count] :
       work.values.at("shapes").get<std::vector<std::pair<std::vector<int64_t>, int64_t>>>())
    for (int64_t i = 0; i < count; ++i) {
      parameters.push_back(at::randn(shape, floats).requires_grad_());
      parameters.back().mutable_grad() = at::randn(shape, floats);
      numbers += parameters.back().numel();
    }

  std::function<void()> step;
  std::unique_ptr<torch::optim::AdamW> theirs;
  std::unique_ptr<fulgur::AdamW> ours;
  std::unique_ptr<fulgur::GraphCapture> graph;
  if (way == "torch::optim") {
    theirs = std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
    step = [&] { theirs->step(); };
  } else {
    ours = std::make_unique<fulgur::AdamW>(fulgur::AdamW::Options{});
    fulgur::ParamGroup group;
    group.params = parameters;
    for (size_t i = 0; i < parameters.size(); ++i) group.names.push_back(std::to_string(i));
    group.lr = group.initial_lr = 1e-3;
    ours->attach({group});
    step = [&] { ours->step(); };
    if (way == "captured") {
      ours->keep_rates_on_device();
      for (int i = 0; i < 3; ++i) ours->step();
      graph = work.accelerator->make_graph_capture(0);
      graph->record(step);
      // As the Trainer does: the rates of the step, then the recorded work.
      step = [&] {
        ours->upload_rates();
        graph->replay();
      };
    }
  }

  Stretches stretches(work);
  for (int64_t i = 0; i < work.number("warmup"); ++i) step();
  stretches.stamp();
  for (int64_t i = 0; i < work.number("stretches"); ++i) {
    for (int64_t k = 0; k < work.number("steps"); ++k) step();
    stretches.stamp();
  }
  return {{"samples", stretches.samples(work.number("steps"))}, {"parameters", numbers}};
}

}  // namespace gpu_bench
