#include "fulgur/strategies/dp.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "check_multi_device.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/parallel_apply.h"

namespace fulgur {

void DPStrategy::configure(StrategySetup setup) {
  detail::check_multi_device("dp", setup);
  SingleProcessStrategy::configure(std::move(setup));
}

void DPStrategy::attach(LightningModule& module) {
  if (!module.automatic_optimization())
    throw ConfigError(
        "[strategies.dp] the module uses manual optimization (automatic_optimization() is false), which its copies on "
        "the other devices do not support. Use ddp.");
  SingleProcessStrategy::attach(module);
}

void DPStrategy::attach_replicas(LightningModule& module,
                                 const std::vector<std::shared_ptr<LightningModule>>& replicas) {
  for (size_t i = 0; i < replicas.size(); ++i) {
    precision_->convert_module(*replicas[i]);
    replicas[i]->to(devices_[i + 1]);
  }
  replicas_ = replicas;
  tensors_.emplace(module, std::vector<std::shared_ptr<torch::nn::Module>>(replicas.begin(), replicas.end()));
}

std::vector<MicroBatch> DPStrategy::split(LightningModule& module, const Batch& batch, RunningStage) {
  const std::vector<int64_t> chunks = nn::even_parts(batch.size(), static_cast<int64_t>(devices_.size()));
  if (chunks.size() < 2) return {};
  tensors_->copy_values();
  std::vector<MicroBatch> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    parts.push_back({.module = i == 0 ? &module : replicas_[i - 1].get(),
                     .batch = batch.narrow(begin, chunks[i]).to(devices_[i], /*non_blocking=*/true),
                     .share = static_cast<double>(chunks[i]) / static_cast<double>(batch.size())});
    begin += chunks[i];
  }
  return parts;
}

void DPStrategy::run_parts(size_t parts, const std::function<void(size_t)>& work) {
  // Current streams are per thread; weights and batch were copied on the caller's.
  std::vector<c10::Stream> streams;
  for (size_t i = 0; i < parts; ++i)
    streams.push_back(c10::impl::VirtualGuardImpl(devices_[i].type()).getStream(devices_[i]));
  nn::parallel_apply(parts, [&](size_t index) {
    // Also sets the current device: for tensors that a module creates without an index.
    const c10::StreamGuard current(streams[index]);
    work(index);
  });
}

void DPStrategy::backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) {
  SingleProcessStrategy::backward(module, loss, sync, options);
  if (tensors_) tensors_->reduce_gradients();
}

void DPStrategy::teardown() noexcept {
  tensors_.reset();
  replicas_.clear();
}

[[maybe_unused]] static const bool registered_dp = Registry<Strategy>::add<DPStrategy>(
    "dp", "Data parallel in one process: a copy of the module on each device, a chunk of the batch for each.");

}  // namespace fulgur
