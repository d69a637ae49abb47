// C3: Fulgur's optimizers.
#include "fulgur/optim/adam.h"
#include "fulgur/optim/sgd.h"
#include "optimizer_cases.h"

namespace {

std::shared_ptr<fulgur::Optimizer> make(const std::string& kind) {
  if (kind == "SGD")
    return std::make_shared<fulgur::SGD>(fulgur::SGD::Options{.lr = bench::kRate, .momentum = bench::kMomentum});
  if (kind == "Adam") return std::make_shared<fulgur::Adam>(fulgur::Adam::Options{.lr = bench::kRate});
  fulgur::AdamW::Options options;
  options.lr = bench::kRate;
  options.weight_decay = bench::kDecay;
  return std::make_shared<fulgur::AdamW>(options);
}

}  // namespace

int main(int count, char** values) {
  bench::run_cases(bench::Arguments(count, values),
                   [](const std::string& kind, const std::vector<at::Tensor>& parameters) {
                     const auto optimizer = make(kind);
                     fulgur::ParamGroup group{.name = "", .params = parameters, .names = {}};
                     for (size_t i = 0; i < parameters.size(); ++i) group.names.push_back("p" + std::to_string(i));
                     optimizer->attach({group});
                     return [optimizer] { optimizer->step(); };
                   });
}
