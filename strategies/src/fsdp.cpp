#include "fulgur/strategies/fsdp.h"

#include <utility>

#include "sharding/optimizer_shards.h"

namespace fulgur {

void FSDPStrategy::Options::fields(Fields& f) {
  f(sharding, "sharding", "What each rank has only a part of. optimizer: the states of the optimizers (ZeRO, stage 1).")
      .required();
  f(units, "units",
    "Patterns of the names of modules whose parameters are exchanged together. auto: the elements of each ModuleList; "
    "the remaining parameters are one unit; []: all are one.");
  DDPStrategy::Options::fields(f);
}

FSDPStrategy::FSDPStrategy(Options options)
    : DDPStrategy(static_cast<const DDPStrategy::Options&>(options)), options_(std::move(options)) {}
// Optimizers may not exist any more.
FSDPStrategy::~FSDPStrategy() = default;

void FSDPStrategy::start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) {
  // It is called again when parameters are frozen or unfrozen.
  optimizers_ = optimizers;
  if (process_group() && !shards_)
    shards_ = std::make_unique<detail::OptimizerShards>(module, optimizers, options_.units.value, *process_group());
  DDPStrategy::start_training(module, optimizers);
}

void FSDPStrategy::optimizer_step(Optimizer& optimizer, const Closure& closure,
                                  const std::optional<Tensor>& found_inf) {
  if (!shards_) return DDPStrategy::optimizer_step(optimizer, closure, found_inf);
  shards_->take_gradients(optimizer);
  struct Drop {
    const detail::OptimizerShards& shards;
    Optimizer& optimizer;
    ~Drop() { shards.drop_gradients(optimizer); }
  } const drop{*shards_, optimizer};
  DDPStrategy::optimizer_step(optimizer, closure, found_inf);
  shards_->gather_parameters(optimizer);
}

StateTree FSDPStrategy::optimizer_state(const Optimizer& optimizer) {
  return shards_ ? shards_->state(optimizer) : DDPStrategy::optimizer_state(optimizer);
}

void FSDPStrategy::load_optimizer_state(Optimizer& optimizer, const StateTree& state) {
  if (shards_) return shards_->load_state(optimizer, state);
  DDPStrategy::load_optimizer_state(optimizer, state);
}

void FSDPStrategy::give_back() noexcept {
  if (shards_)
    for (Optimizer* optimizer : optimizers_) optimizer->step_whole_parameters();
  optimizers_.clear();
  shards_.reset();
}

void FSDPStrategy::abandon() noexcept {
  DDPStrategy::abandon();
  give_back();
}

void FSDPStrategy::teardown() noexcept {
  give_back();
  DDPStrategy::teardown();
}

[[maybe_unused]] static const bool registered_fsdp = Registry<Strategy>::add<FSDPStrategy>(
    "fsdp", "Sharded data parallel: like ddp, and each rank has only its part of the optimizers' state.");

}  // namespace fulgur
