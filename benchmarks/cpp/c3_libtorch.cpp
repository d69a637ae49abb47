// C3: torch::optim.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "optimizer_cases.h"

namespace {

std::shared_ptr<torch::optim::Optimizer> make(const std::string& kind, const std::vector<at::Tensor>& parameters) {
  using namespace torch::optim;
  if (kind == "SGD") return std::make_shared<SGD>(parameters, SGDOptions(bench::kRate).momentum(bench::kMomentum));
  if (kind == "Adam") return std::make_shared<Adam>(parameters, AdamOptions(bench::kRate));
  return std::make_shared<AdamW>(parameters, AdamWOptions(bench::kRate).weight_decay(bench::kDecay));
}

}  // namespace

int main(int count, char** values) {
  bench::run_cases(bench::Arguments(count, values),
                   [](const std::string& kind, const std::vector<at::Tensor>& parameters) {
                     const auto optimizer = make(kind, parameters);
                     return [optimizer] { optimizer->step(); };
                   });
}
