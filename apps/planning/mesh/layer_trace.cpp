#include "planning/mesh/layer_trace.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <utility>

#include "planning/meta_memory.h"

namespace fulgur::cli {
namespace {

using LayerValues = LayerChain::Values;

double all_bytes(const LayerValues& values) {
  double bytes = 0;
  for (const Tensor& value : values) bytes += static_cast<double>(value.nbytes());
  return bytes;
}

class LayerTracer {
 public:
  LayerTracer(TracedModel& model, detail::TracedTensorRank* rank) : model_(model), rank_(rank) {
    model.mode().take_operations();
  }
  ~LayerTracer() {
    model_.mode().set_backward(false);
    model_.mode().set_autocast(std::nullopt);
    model_.mode().take_operations();
    drop_gradients();
  }
  LayerTracer(const LayerTracer&) = delete;
  LayerTracer& operator=(const LayerTracer&) = delete;

  /// Replaces the arguments of a layer by what it returns.
  LayerTrace trace(LayerValues& values, const std::function<LayerValues(const LayerValues&)>& forward) {
    LayerTrace trace;
    MetaMode& mode = model_.mode();
    LayerValues inputs;
    for (const Tensor& value : values)
      inputs.push_back(value.is_floating_point() ? value.detach().requires_grad_(value.requires_grad()) : value);
    mode.take_operations();
    memory_.begin_peaks();
    const int64_t before = memory_.peak_of_blocks();
    LayerValues outputs;
    mode.set_autocast(model_.autocast());
    const auto compute = [&] { outputs = forward(inputs); };
    rank_ ? rank_->compute(compute) : compute();
    mode.set_autocast(std::nullopt);  // frees casts that nothing needs in backward
    trace.forward_peak = static_cast<double>(memory_.peak_of_blocks() - before);
    memory_.begin_peaks();
    trace.kept_bytes = static_cast<double>(memory_.peak_of_blocks() - before);
    trace.output_bytes = all_bytes(outputs);
    if (rank_) trace.forward_exchanges = rank_->take_exchanges();
    values.clear();
    for (const Tensor& output : outputs) values.push_back(output.detach().requires_grad_(output.requires_grad()));
    backward(std::move(outputs), trace);
    trace.operations = mode.take_operations();
    return trace;
  }

 private:
  void backward(LayerValues outputs, LayerTrace& trace) {
    MetaMode& mode = model_.mode();
    const int64_t others = memory_.bytes(MemoryUse::step) + memory_.bytes(MemoryUse::state);
    memory_.begin_peaks();
    std::erase_if(outputs, [](const Tensor& output) { return !output.requires_grad(); });
    if (outputs.empty()) return;
    mode.set_autocast(model_.autocast());
    mode.set_backward(true);
    LayerValues gradients;
    for (const Tensor& output : outputs)
      gradients.push_back(output.dim() == 0 ? Tensor() : at::empty_like(output.detach()));
    torch::autograd::backward(outputs, gradients);
    mode.set_backward(false);
    mode.set_autocast(std::nullopt);
    trace.backward_peak = static_cast<double>(memory_.peak_without_gradients() - others);
    trace.backward_peak_with_gradients = static_cast<double>(memory_.peak() - others);
    trace.gradient_bytes = static_cast<double>(memory_.bytes(MemoryUse::gradients));
    if (rank_) trace.backward_exchanges = rank_->take_exchanges();
    drop_gradients();
  }
  void drop_gradients() {
    for (const NamedParameter& parameter : parameters_) parameter.value.mutable_grad() = Tensor();
  }

  TracedModel& model_;
  detail::TracedTensorRank* rank_;
  const std::vector<NamedParameter> parameters_ = unique_parameters(model_.module());
  MetaMemory& memory_ = MetaMemory::instance();
};

}  // namespace

TracedLayers trace_layers(TracedModel& model, const TensorDivision& division, bool in_layers, int64_t samples) {
  LightningModule& module = model.module();
  std::unique_ptr<detail::TracedTensorRank> rank;
  if (division.ranks > 1) rank = std::make_unique<detail::TracedTensorRank>(module, division.plan, division.ranks);
  TracedLayers traced;
  traced.samples = samples;
  const MetaMemory& memory = MetaMemory::instance();
  const int64_t before = memory.bytes(MemoryUse::step);
  const Batch batch = model.batch(samples);
  traced.batch_bytes = static_cast<double>(memory.bytes(MemoryUse::step) - before);
  traced.tokens = module.num_tokens(batch).value_or(0);
  for (const NamedParameter& parameter : unique_parameters(module))
    traced.parameter_bytes[parameter.value.unsafeGetTensorImpl()] = static_cast<double>(parameter.value.nbytes());
  const auto whole_loss = [&](const Tensor& loss) { return rank ? rank->whole(loss, "the loss") : loss; };
  LayerTracer tracer(model, rank.get());
  if (!in_layers) {
    LayerValues values;
    traced.layers.push_back(tracer.trace(
        values, [&](const LayerValues&) { return LayerValues{whole_loss(module.training_step(batch, 0).loss)}; }));
    return traced;
  }
  const LayerChain chain = module.stages();
  LayerValues values = chain.input(batch);
  for (size_t i = 0; i < chain.layers.size(); ++i)
    traced.layers.push_back(tracer.trace(values, [&](const LayerValues& inputs) {
      LayerValues outputs = chain.layers[i].forward(inputs);
      if (i + 1 == chain.layers.size()) outputs = {whole_loss(chain.loss(outputs, batch))};
      return outputs;
    }));
  return traced;
}

}  // namespace fulgur::cli
