#include "fulgur/strategies/half_precision.h"

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/norm_layers.h"

namespace fulgur {

void Float16True::Options::fields(Fields& f) {
  f(master_weights, "master_weights", "The optimizer steps float32 copies of the weights.");
  f(keep_norm_fp32, "keep_norm_fp32", "Weights and statistics of normalisation layers stay float32.");
  f(loss_scaling, "loss_scaling", "Scales the loss as 16-mixed does; needs master_weights.");
  scaler.fields(f);
}

void BFloat16True::Options::fields(Fields& f) {
  f(master_weights, "master_weights", "The optimizer steps float32 copies of the weights.");
  f(keep_norm_fp32, "keep_norm_fp32", "Weights and statistics of normalisation layers stay float32.");
}

Float16True::Float16True(const Options& options)
    : HalfPrecision(at::kHalf, {.master_weights = options.master_weights,
                                .keep_norm_fp32 = options.keep_norm_fp32,
                                .scaler = options.loss_scaling ? std::optional(options.scaler) : std::nullopt}) {
  if (options.loss_scaling && !options.master_weights)
    throw ConfigError(
        "[strategies.16-true] loss_scaling needs float32 gradients to divide by the scale; master_weights is false. "
        "Set it to true, or loss_scaling: false.");
}

BFloat16True::BFloat16True(const Options& options)
    : HalfPrecision(at::kBFloat16, {.master_weights = options.master_weights,
                                    .keep_norm_fp32 = options.keep_norm_fp32,
                                    .scaler = std::nullopt}) {}

HalfPrecision::HalfPrecision(at::ScalarType dtype, Choices choices)
    : ScaledPrecision(dtype, choices.scaler), keep_norm_fp32_(choices.keep_norm_fp32) {
  if (choices.master_weights) masters_.emplace();
}

void HalfPrecision::convert_module(torch::nn::Module& module) {
  std::unordered_set<const void*> keep;
  if (keep_norm_fp32_) {
    for (const nn::NormLayer& norm : nn::norm_layers(module)) {
      if (!device().is_cpu() && !norm.takes_half_input)
        throw ConfigError(cat("[strategies.", name(), "] keep_norm_fp32: '", norm.name,
                              "' cannot have float32 weights and a half input on ", device().str(),
                              ". Use fulgur::nn::LayerNorm or GroupNorm, or keep_norm_fp32: false."));
      for (const auto& tensor : norm.module->parameters(/*recurse=*/false)) keep.insert(tensor.unsafeGetTensorImpl());
      for (const auto& tensor : norm.module->buffers(/*recurse=*/false)) keep.insert(tensor.unsafeGetTensorImpl());
    }
  }
  convert_floating(module, dtype(), keep);
}

void HalfPrecision::convert_input(Batch& batch) { convert_floating(batch, dtype()); }

void HalfPrecision::prepare_optimizer(Optimizer& optimizer) {
  if (masters_) masters_->adopt(optimizer);
}

void HalfPrecision::unscale(Optimizer& optimizer) {
  if (masters_) masters_->take_gradients(optimizer);
  ScaledPrecision::unscale(optimizer);
}

void HalfPrecision::step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) {
  Precision::step(optimizer, found_inf);
  if (masters_) masters_->write_back(optimizer);
}

void HalfPrecision::update() {
  if (masters_) masters_->end_step();
  ScaledPrecision::update();
}

void HalfPrecision::abandon_step() {
  if (masters_) masters_->end_step();
  ScaledPrecision::abandon_step();
}

StateTree HalfPrecision::state() const {
  StateTree state = ScaledPrecision::state();
  if (masters_) state["master_weights"] = masters_->state();
  return state;
}

StateTree HalfPrecision::state_in_parts(std::vector<TensorPart>& parts) const {
  StateTree state = ScaledPrecision::state();
  if (masters_) state["master_weights"] = masters_->state_in_parts(parts);
  return state;
}

void HalfPrecision::load_state(const StateTree& state) {
  if (masters_ && state.contains("master_weights")) masters_->load_state(state.at("master_weights"));
  ScaledPrecision::load_state(state);
}

[[maybe_unused]] static const bool registered_half_precision =
    Registry<Precision>::add<Float16True>("16-true", "Weights and computation in float16.") &&
    Registry<Precision>::add<BFloat16True>("bf16-true", "Weights and computation in bfloat16.");

}  // namespace fulgur
