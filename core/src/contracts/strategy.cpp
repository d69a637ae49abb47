#include "fulgur/core/contracts/strategy.h"

#include "fulgur/core/contracts/same_ranks.h"
#include "fulgur/core/state/materialize_module.h"

namespace fulgur {
namespace {

/// Moves the entry `name`, if there is one, into a batch for itself.
Batch take_entry(Batch& batch, std::string_view name) {
  Batch taken, rest;
  for (Batch::Entry& entry : batch)
    (entry.first == name ? taken : rest).add(std::move(entry.first), std::move(entry.second));
  batch = std::move(rest);
  return taken;
}

}  // namespace

Strategy::~Strategy() = default;
WholeParameters::~WholeParameters() = default;
SameRanks::~SameRanks() = default;
Precision::Guard::~Guard() = default;

const ProcessPlace& Strategy::place() const {
  static const ProcessPlace alone;
  return alone;
}

void Strategy::run_parts(size_t parts, const std::function<void(size_t)>& work) {
  for (size_t i = 0; i < parts; ++i) work(i);
}

void Strategy::convert_and_move(LightningModule& module) {
  materialize_module(module);
  precision().set_device(device());
  precision().convert_module(module);
  module.to(device());
}

Tensor Strategy::gather(const Tensor& parameter) {
  const auto whole = whole_parameters();
  return parameter.detach().clone();
}

StateTree Strategy::optimizer_state(const Optimizer& optimizer) { return optimizer.state(); }

StateTree Strategy::optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& /*parts*/) {
  return optimizer_state(optimizer);
}

void Strategy::load_optimizer_state(Optimizer& optimizer, const StateTree& state) { optimizer.load_state(state); }

void Strategy::optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) {
  if (closure)
    optimizer.step_closure(closure);
  else
    precision().step(optimizer, found_inf);
}

void Strategy::batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx) {
  const BatchTransforms* const transforms =
      data && module.in_run() ? data->batch_transforms(module.run().stage()) : nullptr;
  if (!transforms) precision().convert_input(batch);
  if (data) {
    Batch parameters;
    if (transforms && !transforms->parameters_entry().empty())
      parameters = take_entry(batch, transforms->parameters_entry());
    batch = data->on_before_batch_transfer(module, std::move(batch), loader_idx);
    batch = data->transfer_batch_to_device(module, std::move(batch), device(), loader_idx);
    if (transforms) {
      parameters = parameters.to(device(), /*non_blocking=*/true);
      for (Batch::Entry& entry : parameters) batch.add(std::move(entry.first), std::move(entry.second));
      batch = transforms->apply(std::move(batch));
      // Numbers that were drawn, and images between two transforms, keep their bits.
      precision().convert_input(batch);
    }
    batch = data->on_after_batch_transfer(module, std::move(batch), loader_idx);
    return;
  }
  const HookMask& overridden = detail::ComponentAccess::overridden(module);
  if (overridden.has(Hook::on_before_batch_transfer))
    batch = module.on_before_batch_transfer(std::move(batch), loader_idx);
  if (overridden.has(Hook::transfer_batch_to_device) || !batch.is_on(device()))
    batch = module.transfer_batch_to_device(std::move(batch), device(), loader_idx);
  if (overridden.has(Hook::on_after_batch_transfer))
    batch = module.on_after_batch_transfer(std::move(batch), loader_idx);
}

}  // namespace fulgur
