#include "fulgur/trainer/fabric.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/state/let_go.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/launcher.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/launch_options.h"
#include "fulgur/trainer/trainer.h"
#include "setup/devices.h"
#include "setup/process_settings.h"

namespace fulgur {
namespace {

// A module of the user's as strategies expect it.
class ModuleOfLoop final : public LightningModule {
 public:
  explicit ModuleOfLoop(std::shared_ptr<torch::nn::Module> inner) { register_module("module", std::move(inner)); }
  StepOutput training_step(const Batch&, int64_t) override {
    throw Error("[trainer.fabric] the training step is in the loop; a strategy has called that of the module.");
  }
};

TrainerOptions trainer_options(const FabricOptions& options) {
  TrainerOptions out;
  out.accelerator = options.accelerator;
  out.devices = options.devices;
  out.num_nodes = options.num_nodes;
  out.strategy = options.strategy;
  out.precision = options.precision;
  out.num_threads = options.num_threads;
  return out;
}

constexpr std::string_view kFabricState = detail::checkpoint_keys::kFabric,
                           kFabricRanks = detail::checkpoint_keys::kRanks,
                           kLoopState = detail::checkpoint_keys::kFabricLoop;

}  // namespace

struct FabricLoader::Impl {
  std::shared_ptr<Loader> loader;
  LoaderUse use = LoaderUse::train;
  Fabric* fabric = nullptr;
  std::shared_ptr<LightningModule>* module = nullptr;  // of the Fabric
  HeldBatch batch;
};

FabricLoader::FabricLoader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FabricLoader::~FabricLoader() = default;

FabricLoader::Epoch FabricLoader::epoch(int64_t epoch) {
  let_go(impl_->batch.get());
  // An evaluation is never continued in its middle.
  if (impl_->use == LoaderUse::evaluate)
    impl_->loader->restart_epoch(epoch);
  else
    impl_->loader->start_epoch(epoch);
  return {*this};
}

std::optional<int64_t> FabricLoader::size() const { return impl_->loader->size(); }
const Batch& FabricLoader::batch() const { return impl_->batch.get(); }

bool FabricLoader::advance() {
  Batch& batch = impl_->batch.get();
  // Before the loader makes the next batch, which it may write into the same memory.
  let_go(batch);
  if (!impl_->loader->next(batch)) return false;
  if (!*impl_->module) throw Error("[trainer.fabric] batches are moved to the module's device; call setup first.");
  const HeldBatch as_loaded(batch);
  impl_->fabric->strategy().batch_to_device(**impl_->module, nullptr, batch, 0);
  return true;
}

struct Fabric::Impl {
  explicit Impl(const FabricOptions& from) : options(trainer_options(from)) {
    detail::check_options(options, "trainer");
  }

  TrainerOptions options;
  std::shared_ptr<Strategy> strategy;
  detail::ChosenDevices devices;
  std::unique_ptr<c10::DeviceGuard> current_device;
  std::optional<uint64_t> seed;
  std::shared_ptr<torch::nn::Module> own;   // the user's
  std::shared_ptr<LightningModule> module;  // the same for the strategy
  std::vector<std::shared_ptr<Optimizer>> optimizers;
  std::vector<std::shared_ptr<FabricLoader>> loaders;
  GradSync sync = GradSync::now;
  bool started = false;
  int64_t steps = 0;

  Strategy& connected() {
    if (strategy) return *strategy;
    detail::set_threads(detail::decide_threads(options.num_threads));
    const std::shared_ptr<Strategy> made = options.strategy.create();
    devices = detail::choose_devices(options, made->device_use());
    made->configure({.devices = devices.devices,
                     .devices_are_auto = devices.is_auto,
                     .num_nodes = options.num_nodes,
                     .precision = options.precision.create()});
    strategy = made;
    current_device = detail::make_current(made->device());
    if (made->rank() != 0) log::leave_console(cat("rank ", made->rank()));
    return *strategy;
  }

  LightningModule& need_module() const {
    if (!module) throw Error("[trainer.fabric] there is no module yet; call setup first.");
    return *module;
  }

  void refuse_unless_own(const Optimizer& optimizer) const {
    for (const auto& known : optimizers)
      if (known.get() == &optimizer) return;
    throw Error(cat("[trainer.fabric] ", optimizer.name(), " was not passed to setup."));
  }

  StateTree own_state() const {
    StateTree::List positions;
    for (const auto& loader : loaders) positions.push_back(loader->impl_->loader->state());
    return StateTree::map(
        {{"loaders", std::move(positions)}, {"rng", rng_state(strategy->devices())}, {"strategy", strategy->state()}});
  }
};

Fabric::Fabric(FabricOptions options) : impl_(std::make_unique<Impl>(options)) {}

Fabric::~Fabric() {
  if (!impl_->strategy) return;
  // The others may never arrive at what this rank would wait for.
  if (std::uncaught_exceptions() > 0) impl_->strategy->abandon();
  impl_->loaders.clear();
  impl_->strategy->teardown();
}

std::optional<int> Fabric::launch(int argc, char** argv) {
  if (impl_->strategy) throw Error("[trainer.fabric] launch comes first; this process has already joined the others.");
  const TrainerOptions& options = impl_->options;
  const std::optional<LaunchPlan> plan = options.strategy.create()->launch_plan();
  if (!plan || detect_cluster_environment(process_environment(), plan->cluster_environment)) return std::nullopt;
  const int64_t processes = count_processes(options);
  if (processes * options.num_nodes == 1) return std::nullopt;
  const LaunchReport report = fulgur::launch(launch_options(options, *plan, processes), {argv, argv + argc});
  if (!report.message.empty())
    for (const std::string& line : split_text(report.message, '\n')) log::error(line);
  return report.exit_code;
}

void Fabric::seed_everything(uint64_t seed) {
  Strategy& strategy = impl_->connected();
  impl_->seed = seed;
  fulgur::seed_everything(rank_seed(seed, strategy.rank()));
  seed_devices(rank_seed(seed, strategy.rank()), strategy.devices());
}

at::Device Fabric::device() { return impl_->connected().device(); }
int64_t Fabric::rank() { return impl_->connected().rank(); }
int64_t Fabric::world_size() { return impl_->connected().world_size(); }
Strategy& Fabric::strategy() { return impl_->connected(); }

void Fabric::print(std::string_view line) {
  if (!is_global_zero()) return;
  std::fprintf(stdout, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

void Fabric::setup(std::shared_ptr<torch::nn::Module> module, std::vector<std::shared_ptr<Optimizer>> optimizers) {
  Strategy& strategy = impl_->connected();
  if (impl_->module)
    throw Error("[trainer.fabric] setup takes one module, once. Register several networks as parts of one module.");
  if (!module) throw Error("[trainer.fabric] setup needs a module; got a null pointer.");
  if (strategy.data_shares() != strategy.world_size())
    throw ConfigError(
        "[trainer.fabric] the ranks of a pipeline compute a step together, which a loop of your own does not. Set "
        "mesh.pipeline to 1, or use the Trainer.");
  if (strategy.replicas_wanted() > 0 || strategy.splits_batches())
    throw ConfigError(
        cat("[trainer.fabric] a loop of your own computes each batch by itself; strategy ", strategy.name(),
            " splits batches among copies or parts of the module. Use the Trainer, or single_device or ddp."));
  std::shared_ptr<LightningModule> wrapped = std::dynamic_pointer_cast<LightningModule>(module);
  if (!wrapped) {
    const auto made = std::make_shared<ModuleOfLoop>(module);
    detail::ComponentAccess::find_overridden<LightningModule>(*made);
    wrapped = made;
  }
  strategy.attach(*wrapped);
  for (const auto& optimizer : optimizers) {
    if (!optimizer) throw Error("[trainer.fabric] setup got an optimizer that is a null pointer.");
    if (!optimizer->attached() && optimizers.size() > 1)
      throw ConfigError(cat("[trainer.fabric] with several optimizers each needs its parameters; ", optimizer->name(),
                            " has none. Attach them: optimizer->attach(fulgur::trainable_groups(*part))."));
    if (!optimizer->attached()) optimizer->attach(trainable_groups(*module));
    strategy.precision().prepare_optimizer(*optimizer);
  }
  impl_->own = std::move(module);
  impl_->module = std::move(wrapped);
  impl_->optimizers = std::move(optimizers);
}

std::shared_ptr<FabricLoader> Fabric::setup_loader(std::shared_ptr<Loader> loader, LoaderUse use) {
  Strategy& strategy = impl_->connected();
  if (!loader) throw Error("[trainer.fabric] setup_loader needs a loader; got a null pointer.");
  // The order must be the same on all ranks.
  if (!impl_->seed) impl_->seed = std::stoull(collectives().broadcast_text(std::to_string(random_seed()), 0));
  if (use == LoaderUse::train && strategy.world_size() > 1) loader->share_evenly(UnevenShares::pad);
  loader->configure(*impl_->seed, strategy.rank(), strategy.world_size());
  auto made = std::make_unique<FabricLoader::Impl>();
  made->loader = std::move(loader);
  made->use = use;
  made->fabric = this;
  made->module = &impl_->module;
  impl_->loaders.push_back(std::make_shared<FabricLoader>(std::move(made)));
  return impl_->loaders.back();
}

void Fabric::before_forward(GradSync sync) {
  LightningModule& module = impl_->need_module();
  if (!std::exchange(impl_->started, true)) {
    std::vector<Optimizer*> optimizers;
    for (const auto& optimizer : impl_->optimizers) optimizers.push_back(optimizer.get());
    impl_->strategy->start_training(module, optimizers);
  }
  impl_->sync = sync;
  impl_->strategy->before_forward(module, sync);
}

std::unique_ptr<Precision::Guard> Fabric::autocast() { return impl_->connected().precision().forward_guard(); }

void Fabric::backward(const Tensor& loss) {
  LightningModule& module = impl_->need_module();
  if (!loss.defined() || loss.numel() != 1)
    throw Error("[trainer.fabric] backward needs a loss that is one number; reduce it, for example with .mean().");
  impl_->strategy->backward(module, impl_->strategy->precision().scale(loss), impl_->sync, {});
}

Tensor Fabric::clip_gradients(Optimizer& optimizer, double max_norm) {
  impl_->refuse_unless_own(optimizer);
  impl_->strategy->precision().unscale(optimizer);
  return clip_grad_norm(optimizer, max_norm);
}

void Fabric::clip_gradients_by_value(Optimizer& optimizer, double clip_value) {
  impl_->refuse_unless_own(optimizer);
  impl_->strategy->precision().unscale(optimizer);
  clip_grad_value(optimizer.gradients(), clip_value);
}

void Fabric::step(Optimizer& optimizer, const Closure& closure) {
  impl_->refuse_unless_own(optimizer);
  Precision& precision = impl_->strategy->precision();
  if (optimizer.needs_closure() && !closure)
    throw Error(cat("[trainer.fabric] ", optimizer.name(),
                    " evaluates its loss several times; call step(optimizer, closure)."));
  if (closure && !optimizer.needs_closure())
    throw Error(cat("[trainer.fabric] ", optimizer.name(),
                    " makes its step on gradients that are there; call step without a closure."));
  if (closure && !precision.allows_closure())
    throw ConfigError(cat("[trainer.fabric] precision ", precision.name(),
                          " scales the loss, which cannot change inside a step; ", optimizer.name(),
                          " evaluates its loss several times. Use another precision or optimizer."));
  if (closure) {
    const Closure from_zero = [&] {
      optimizer.zero_grad();
      return closure();
    };
    impl_->strategy->optimizer_step(optimizer, from_zero, std::nullopt);
  } else {
    precision.unscale(optimizer);
    impl_->strategy->optimizer_step(optimizer, {}, precision.found_inf(optimizer));
  }
  precision.update();
  optimizer.zero_grad();
  ++impl_->steps;
  impl_->strategy->collectives().set_steps_done(impl_->steps);
  impl_->strategy->after_step(*impl_->module, impl_->steps);
}

struct Fabric::Evaluation::Impl {
  explicit Impl(Fabric::Impl& of) : fabric(of), rng(fabric.strategy->devices()) {
    for (const auto& part : fabric.own->modules()) modes.emplace_back(part, part->is_training());
    fabric.strategy->before_evaluation(*fabric.module);
    whole = fabric.strategy->whole_parameters();
    fabric.own->eval();
    formats = fabric.strategy->precision().forward_guard();
  }
  ~Impl() {
    formats.reset();
    for (const auto& [part, training] : modes)
      // It sets the parts below too, which come later in the list.
      if (part->is_training() != training) part->train(training);
    try {
      whole.reset();
      if (fabric.strategy) fabric.strategy->after_evaluation(*fabric.module);
    } catch (const std::exception&) {
      // A device that has failed: the next step says so.
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Fabric::Impl& fabric;
  RngGuard rng;
  std::unique_ptr<WholeParameters> whole;
  at::NoGradGuard no_grad;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  std::unique_ptr<Precision::Guard> formats;
};

Fabric::Evaluation::Evaluation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Fabric::Evaluation::~Evaluation() = default;
Fabric::Evaluation::Evaluation(Evaluation&&) noexcept = default;

Fabric::Evaluation Fabric::evaluation() {
  impl_->need_module();
  return Evaluation(std::make_unique<Evaluation::Impl>(*impl_));
}

std::filesystem::path Fabric::save(const std::filesystem::path& folder, const StateTree& state) {
  impl_->need_module();
  if (folder.extension() != ".ckpt")
    throw ConfigError(
        cat("[trainer.fabric] the name of a checkpoint must end in .ckpt, by which list_checkpoints finds it; got '",
            escape_controls(folder.string()), "'."));
  Collectives& collectives = impl_->strategy->collectives();
  Strategy& strategy = *impl_->strategy;
  const bool in_parts = strategy.saves_parts();
  const auto whole = in_parts ? nullptr : strategy.whole_parameters();
  CheckpointContent content;
  content.module = module_state(*impl_->own);
  if (in_parts) content.module = detail::in_parts(strategy, std::move(content.module), content.parts);
  content.aliases = parameter_aliases(*impl_->own);
  StateTree::List optimizers, ranks;
  for (const auto& optimizer : impl_->optimizers)
    optimizers.push_back(in_parts ? strategy.optimizer_state_in_parts(*optimizer, content.parts)
                                  : strategy.optimizer_state(*optimizer));
  content.optimizers = std::move(optimizers);
  for (const std::string& packed : collectives.gather_text(pack_state(impl_->own_state())))
    ranks.push_back(unpack_state(packed));
  content.state =
      StateTree::map({{std::string(kFabricState),
                       StateTree::map({{"steps", impl_->steps}, {"precision", impl_->strategy->precision().state()}})},
                      {std::string(kFabricRanks), std::move(ranks)},
                      {std::string(kLoopState), state},
                      {"progress", StateTree::map({{"epoch", 0}, {"global_step", impl_->steps}})}});
  content.origin.world_size = collectives.world_size();
  content.origin.device = impl_->devices.describe();
  content.origin.threads = at::get_num_threads();
  if (in_parts) return detail::write_parts_of_ranks(collectives, folder, content);
  return detail::path_of_rank_0(collectives, [&] { return write_verified_checkpoint(folder, content); });
}

StateTree Fabric::load(const std::filesystem::path& folder) {
  impl_->need_module();
  if (impl_->started)
    throw Error("[trainer.fabric] load comes before the first forward, in which the ranks agree on their exchanges.");
  CheckpointContent content = read_checkpoint(folder);
  if (!content.state.contains(kFabricState))
    throw CheckpointError(cat("[trainer.fabric] load reads checkpoints that Fabric::save has written; '",
                              escape_controls(folder.string()),
                              "' is another one. Load its weights with fulgur::load_module_state."));
  const StateTree& saved = content.state.at(kFabricState);
  const StateTree::List& ranks = content.state.at(kFabricRanks).as_list();
  Strategy& strategy = *impl_->strategy;
  if (static_cast<int64_t>(ranks.size()) != strategy.world_size())
    throw CheckpointError(cat("[trainer.fabric] the checkpoint was saved by ",
                              counted(static_cast<int64_t>(ranks.size()), "rank"), "; this run has ",
                              strategy.world_size(), ". Continue with as many ranks."));
  const StateTree& own = ranks[static_cast<size_t>(strategy.rank())];
  const StateTree::List& optimizers = content.optimizers.as_list();
  const StateTree::List& loaders = own.at("loaders").as_list();
  const auto compare = [](std::string_view what, size_t there, size_t here) {
    if (there != here)
      throw CheckpointError(cat("[trainer.fabric] the checkpoint has ", counted(static_cast<int64_t>(there), what),
                                ", but the loop has set up ", static_cast<int64_t>(here), "."));
  };
  compare("optimizer", optimizers.size(), impl_->optimizers.size());
  compare("loader", loaders.size(), impl_->loaders.size());
  const auto whole = strategy.whole_parameters();
  load_module_state(*impl_->own, content.module);
  for (size_t i = 0; i < optimizers.size(); ++i) strategy.load_optimizer_state(*impl_->optimizers[i], optimizers[i]);
  strategy.precision().load_state(saved.at("precision"));
  for (size_t i = 0; i < loaders.size(); ++i) impl_->loaders[i]->impl_->loader->load_state(loaders[i]);
  strategy.load_state(own.at("strategy"));
  impl_->steps = saved.at("steps").as_int();
  load_rng_state(strategy.devices(), own.at("rng"));
  return content.state.at(kLoopState);
}

}  // namespace fulgur
