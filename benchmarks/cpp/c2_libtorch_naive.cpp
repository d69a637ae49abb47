// C2, LibTorch as its tutorials use it: torch::data and torch::optim.
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/optim/adamw.h>

#include "libtorch_order.h"
#include "mlp.h"

namespace {

class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  Samples(at::Tensor x, at::Tensor y) : x_(std::move(x)), y_(std::move(y)) {}
  torch::data::Example<> get(size_t index) override {
    return {x_[static_cast<int64_t>(index)], y_[static_cast<int64_t>(index)]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(x_.size(0)); }

 private:
  at::Tensor x_, y_;
};

}  // namespace

int main(int count, char** values) {
  const bench::Arguments arguments(count, values);
  bench::prepare();
  const bench::Inputs inputs(arguments);
  bench::Mlp net;
  net.load(arguments.text("inputs") + "/weights.safetensors");
  bench::Losses losses;

  auto loader = torch::data::make_data_loader(Samples(inputs.x, inputs.y).map(torch::data::transforms::Stack<>()),
                                              bench::GivenOrder(inputs.order),
                                              torch::data::DataLoaderOptions().batch_size(bench::kBatch));
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(bench::kRate));
  bench::Laps laps;
  for (int64_t epoch = 0; epoch < arguments.number("epochs"); ++epoch) {
    laps.stamp();
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      const at::Tensor loss = net.loss(batch.data, batch.target);
      losses.add(loss);
      loss.backward();
      optimizer.step();
    }
  }
  laps.stamp();
  bench::write_report(arguments, {{"samples", laps.samples()}, {"losses", losses.report(net, inputs)}});
}
