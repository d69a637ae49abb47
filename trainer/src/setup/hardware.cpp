#include "setup/hardware.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/yaml.h"
#include "setup/allocator.h"
#include "setup/process_settings.h"

namespace fulgur::detail {

namespace {

// Several processes of one launcher that do not know of each other would each train on all the data.
void warn_if_one_of_several(const Strategy& strategy) {
  if (strategy.launch_plan() || strategy.world_size() > 1) return;
  std::optional<ProcessPlace> place;
  try {
    place = detect_cluster_environment(process_environment());
  } catch (const Error&) {
    // Incomplete variables matter only to a strategy with several processes.
  }
  if (!place || place->world_size <= 1) return;
  log::warn("strategies.single_process",
            cat("this process is rank ", place->rank, " of ", place->world_size, " (",
                place->environment == "variables" ? "RANK and WORLD_SIZE" : place->environment, "), but strategy ",
                strategy.name(),
                " is one process: each process runs by itself, on all the data. To make them one run, set "
                "trainer.strategy: ddp; if they are meant to be separate runs, silence this warning"));
}

// Multiply-adds of a forward pass, by what is known without computing one: each weight is applied to each sample of a
// batch. In a model of images or tokens, it is applied at many places of each.
double forward_work(const RunState& run) {
  constexpr double kPlaces = 64;
  double weights = 0;
  bool has_places = false;
  for (const NamedParameter& parameter : unique_parameters(*run.model)) {
    if (!parameter.value.defined()) continue;
    weights += static_cast<double>(parameter.value.numel());
    has_places |= parameter.value.dim() > 2;  // convolutions, embeddings of positions
  }
  for (const auto& module : run.model->modules())
    has_places |= dynamic_cast<const torch::nn::EmbeddingImpl*>(module.get()) != nullptr;
  int64_t batch = 1;
  // The few, large batches of a fit's validations do not decide for its training.
  for (const auto& [stage, loaders] : run.stages)
    if (run.fn != TrainerFn::fit || stage == RunningStage::train)
      for (const auto& loader : loaders.loaders) batch = std::max(batch, loader->batch_size());
  return static_cast<double>(batch) * weights * (has_places ? kPlaces : 1);
}

// What a run has decided about the CPU, as its checkpoints record it.
struct CpuDecisions {
  std::optional<int64_t> threads;
  std::optional<CpuMatmul> matmul;
};

CpuDecisions cpu_decisions_in(const StateTree* checkpoint) {
  CpuDecisions decisions;
  if (checkpoint == nullptr || !checkpoint->is_map() || !checkpoint->contains(checkpoint_keys::kConfig)) return {};
  Problems problems;
  const ConfigNode config = parse_yaml(checkpoint->at(checkpoint_keys::kConfig).as_string(), "checkpoint", problems);
  const ConfigNode* const trainer = problems.empty() && config.is_map() ? config.find("trainer") : nullptr;
  if (trainer == nullptr || !trainer->is_map()) return {};
  const auto text_of = [&](const char* key) {
    const ConfigNode* const value = trainer->find(key);
    return value != nullptr && value->is_scalar() ? value->text() : std::string();
  };
  decisions.threads = parse_whole<int64_t>(text_of("num_threads"));
  decisions.matmul = enum_from<CpuMatmul>(text_of("cpu_matmul"));
  return decisions;
}

}  // namespace

Hardware choose_hardware(RunState& run) {
  Hardware hardware;
  hardware.threads = set_threads(decide_threads(run.options.num_threads));
  decide_cpu_matmul(run.options.cpu_matmul);  // refuses what this CPU cannot do before anything is loaded
  auto precision = run.components.precision ? run.components.precision : run.options.precision.create();
  run.strategy = run.components.strategy ? run.components.strategy : run.options.strategy.create();
  check_allocator(run.options.allocator);
  hardware.devices = choose_devices(run.options, run.strategy->device_use());
  set_allocator(run.options.allocator, hardware.devices.accelerator->name());
  run.strategy->configure({.devices = hardware.devices.devices,
                           .devices_are_auto = hardware.devices.is_auto,
                           .num_nodes = run.options.num_nodes,
                           .sync_batchnorm = run.options.sync_batchnorm,
                           .syncs_after_backward = run.options.auto_micro_batch,
                           .starts_before_forward = true,
                           .precision = std::move(precision)});
  warn_if_one_of_several(*run.strategy);
  hardware.current_device = make_current(run.strategy->device());
  if (run.fn == TrainerFn::fit)
    for (const at::Device& device : run.strategy->devices()) reset_peak_memory(device);
  // Each process has drawn a seed, but the samplers of all ranks need the same one.
  if (run.components.config) {
    const std::string own = run.seed ? std::to_string(*run.seed) : std::string();
    if (const std::string first = run.collectives().broadcast_text(own, 0); !first.empty())
      run.seed = std::stoull(first);
  }
  // Each share of the data draws its own numbers; weights are rank 0's.
  if (run.seed) {
    const uint64_t seed = rank_seed(*run.seed, run.strategy->data_share());
    seed_everything(seed);
    seed_devices(seed, run.strategy->devices());
  }
  if (!run.is_global_zero()) log::leave_console(cat("rank ", run.rank()));
  return hardware;
}

void choose_cpu_work(RunState& run, const StateTree* resumed, Hardware& hardware) {
  const CpuDecisions before = cpu_decisions_in(resumed);
  const int64_t cpus = usable_cpus();
  if (const auto given = given_threads(run.options.num_threads))
    hardware.threads = *given;
  else if (before.threads.value_or(cpus + 1) <= cpus)
    hardware.threads = *before.threads;  // another number would change the last bits
  else
    hardware.threads = run.device().is_cuda() ? cpus : threads_for_work(forward_work(run), cpus);
  hardware.threads = set_threads(hardware.threads);
  if (!run.device().is_cuda()) hardware.spin_limit = SpinLimit::of_run(hardware.threads);

  CpuMatmul matmul = run.options.cpu_matmul;
  if (matmul == CpuMatmul::automatic && before.matmul) {
    matmul = *before.matmul;
    if (const std::string why = why_no_onednn_matmul(); matmul == CpuMatmul::onednn && !why.empty()) {
      run.print(cat("resume: oneDNN multiplied the matrices of this run, and cannot do so here: ", why,
                    ". Results may differ in the last bits"));
      matmul = CpuMatmul::automatic;
    }
  }
  hardware.matmul = decide_cpu_matmul(matmul);
  hardware.matmul_scope = std::make_unique<CpuMatmulScope>(hardware.matmul);
}

}  // namespace fulgur::detail
