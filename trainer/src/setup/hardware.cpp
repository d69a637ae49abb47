#include "setup/hardware.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
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

}  // namespace

Hardware choose_hardware(RunState& run) {
  Hardware hardware;
  hardware.threads = decide_threads(run.options.num_threads);
  set_threads(hardware.threads);
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
                           .precision = std::move(precision)});
  warn_if_one_of_several(*run.strategy);
  // From here on `at::kCUDA` without an index means this device, as in Lightning. Some kinds of device have no current
  // device (a strategy's own stand-ins).
  if (const at::Device device = run.strategy->device();
      !device.is_cpu() && c10::impl::hasDeviceGuardImpl(device.type()))
    hardware.current_device = std::make_unique<c10::DeviceGuard>(device);
  if (run.fn == TrainerFn::fit)
    for (const at::Device& device : run.strategy->devices()) reset_peak_memory(device);
  // Each process has drawn a seed, but the samplers of all ranks need the same one.
  if (run.components.config) {
    const std::string own = run.seed ? std::to_string(*run.seed) : std::string();
    if (const std::string first = run.collectives().broadcast_text(own, 0); !first.empty())
      run.seed = std::stoull(first);
  }
  // Each rank draws its own numbers; weights are rank 0's.
  if (run.seed) {
    seed_everything(rank_seed(*run.seed, run.rank()));
    seed_devices(rank_seed(*run.seed, run.rank()), run.strategy->devices());
  }
  if (!run.is_global_zero()) log::leave_console(cat("rank ", run.rank()));
  return hardware;
}

}  // namespace fulgur::detail
