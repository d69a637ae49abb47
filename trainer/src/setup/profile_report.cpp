#include "setup/profile_report.h"

#include <algorithm>
#include <fstream>

#include "capture/cannot_capture.h"
#include "fulgur/checkpoint/new_file.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/ddp.h"
#include "profiling/make_profiler.h"
#include "profiling/profile_path.h"
#include "profiling/simple_profiler.h"
#include "profiling/step_costs.h"
#include "setup/process_settings.h"

namespace fulgur::detail {

namespace {

std::shared_ptr<Profiler> profiler_of(const RunState& run) {
  // In steps of the optimizers, by which the run ends: the batches of a window differ within an epoch and by schedules.
  if (run.is_profile())
    return std::make_shared<SimpleProfiler>(
        SimpleProfiler::Options{.skip_first = kProfileWarmup, .steps = run.components.profile_steps},
        [&run] { return run.counters.global_step; });
  return run.components.profiler ? run.components.profiler : make_profiler(run.options.profiler);
}

/// The text of an option of the run's data module; nullopt if it does not have it.
std::optional<std::string> data_option(const RunState& run, std::string_view name) {
  const ConfigNode* node = &run.description.config;
  for (const std::string_view key : {std::string_view("data"), std::string_view("init_args"), name})
    if (!(node = node->find(key))) return std::nullopt;
  return node->is_scalar() ? std::optional(node->text()) : std::nullopt;
}

RunTraits traits_of(const RunState& run) {
  // The processes of a node share its cores.
  const int64_t processes = std::max<int64_t>(1, run.world_size() / std::max<int64_t>(1, run.options.num_nodes)),
                cores = std::max<int64_t>(1, usable_cpus() / processes);
  RunTraits traits{
      .on_cpu = run.device().is_cpu(),
      .captures = run.options.capture,
      .ranks = run.world_size(),
      // What `auto` decided is no bottleneck to point at.
      .threads = given_threads(run.options.num_threads) ? run.description.threads : cores,
      .cores = cores,
      .num_workers = {},
      .accumulate_grad_batches = run.accumulation,
      .precision = run.strategy->precision().name(),
      .has_images = std::ranges::any_of(unique_parameters(*run.model),
                                        [](const NamedParameter& parameter) { return parameter.value.dim() == 4; }),
      .channels_last = run.options.channels_last,
      .high_matmul_precision = run.options.float32_matmul_precision.value_or("highest") != "highest",
      .compresses_gradients = false,
      .finds_unused_parameters = false};
  const bool trained = run.counters.batches_total.completed > 0;
  traits.can_capture = run.device().is_cuda() && trained && !cannot_capture(run);
  // TF32 is one of CUDA's formats.
  traits.high_matmul_precision |= !run.device().is_cuda();
  if (const auto workers = data_option(run, "num_workers")) traits.num_workers = parse_whole<int64_t>(*workers);
  if (const auto* const ddp = dynamic_cast<const DDPStrategy*>(run.strategy.get())) {
    traits.compresses_gradients = ddp->options().compression != DDPStrategy::Compression::none;
    traits.finds_unused_parameters = ddp->options().find_unused_parameters;
    traits.has_buckets = ddp->options().compression != DDPStrategy::Compression::powersgd;
  }
  return traits;
}

void print_lines(const RunState& run, const std::string& text) {
  std::vector<std::string> lines = split_text(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) run.print(line);
}

void print_bottleneck(const RunState& run, SimpleProfiler& profiler) {
  StepCosts costs = step_costs(profiler.rows(), profiler.steps(), profiler.steps_s());
  const int64_t batches = std::max<int64_t>(run.counters.batches_total.completed, 1);
  costs.samples = static_cast<double>(run.counters.samples_seen) / static_cast<double>(batches);
  const RunTraits traits = traits_of(run);
  print_lines(run, bottleneck_text(find_bottleneck(costs, traits), costs, traits));
}

void write_profile(const RunState& run, const std::string& json) {
  const std::filesystem::path path = free_profile_path(run.run_dir, "profile");
  try {
    NewFile file(path.parent_path(), path.filename().string(), "trainer.profile");
    std::ofstream out(file.hidden());
    out << json << "\n";
    out.close();
    if (!out) return log::warn("trainer.profile", cat("the profile cannot be written to ", path));
    file.publish();
    file.keep();
  } catch (const CheckpointError& error) {
    log::warn("trainer.profile", first_line(error.what()));
  }
}

}  // namespace

void start_profiler(RunState& run) {
  const Spec<Profiler>& named = run.options.profiler;
  if (run.is_profile() && (run.components.profiler || (named && named.class_path() != "none")))
    run.print(
        "profile: trainer.profiler is not used, since a profile measures by itself. For its results, leave out "
        "--profile "
        "(in C++, profile_steps)");
  const std::shared_ptr<Profiler> profiler = profiler_of(run);
  if (!profiler) return;
  profiler->start({.fn = run.fn,
                   .device = run.device(),
                   .rank = run.rank(),
                   .run_dir = run.run_dir,
                   .module = run.model.get(),
                   .records_graphs = run.options.capture});
  run.actions.report_to(profiler);
  // A recorded exchange is not seen by the host.
  if (run.fn == TrainerFn::fit && run.world_size() > 1 && !run.options.capture)
    run.strategy->watch_exchanges([profiler] { profiler->exchange_is_awaited(); });
}

void report_profile(RunState& run) {
  const std::shared_ptr<Profiler> profiler = run.actions.take_profiler();
  if (!profiler) return;
  run.strategy->watch_exchanges({});
  if (run.failed_alone) profiler->abandon();
  const std::optional<Profile> profile = profiler->stop();
  if (!run.is_global_zero()) return;
  if (profile) print_lines(run, cat("profile of ", name_of(run.fn), ": ", profile->table));
  if (profile && !profile->json.empty() && !run.run_dir.empty()) write_profile(run, profile->json);
  if (run.is_profile()) print_bottleneck(run, static_cast<SimpleProfiler&>(*profiler));
}

}  // namespace fulgur::detail
