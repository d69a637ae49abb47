#include "setup/resume_plan.h"

#include "checkpointing/resume.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_config.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "process/run_folder.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

// What `ckpt_path: auto` has found, and the folder in which the run begins again if that has no checkpoint.
void report_search(const RunState& run, const ResolvedCheckpoint& resolved, ResumePlan& plan) {
  if (plan.checkpoint) {
    if (!resolved.passed_over.empty())
      run.print(cat("resume: ", resolved.run_dir->filename().string(),
                    "; newer folders have no checkpoint of a fit: ", join(resolved.passed_over)));
    return;
  }
  if (resolved.run_dir && run_name(run.options, run.components).version) plan.restarted_run_dir = resolved.run_dir;
  const fs::path newest = newest_run_folder(run.options.default_root_dir, run_name(run.options, run.components));
  run.print(cat(
      "resume: there is no checkpoint to resume from",
      has_checkpoint_folder(newest) ? cat(" (", newest.filename().string(), " ended before its first checkpoint)") : "",
      "; the run starts from its first step"));
}

// The folder of the version that a logger names, if a fit ended there before its first checkpoint.
std::optional<fs::path> folder_without_checkpoint(const RunState& run) {
  const RunName name = run_name(run.options, run.components);
  if (!name.version) return std::nullopt;
  const auto found = newest_run_to_resume(run.options.default_root_dir, name, [](const fs::path&) { return false; });
  return found ? std::optional(found->folder) : std::nullopt;
}

// Whether the checkpoint was found by a search, possibly before the run existed.
bool was_searched(const RunState& run, const std::string& choice) {
  const auto& verified = run.components.verified_checkpoint;
  return choice == "auto" || (verified && verified->path == choice);
}

// A run that is searched for continues in its folder; one whose checkpoint is named may begin another run.
void choose_run(const RunState& run, const std::string& choice, ResumePlan& plan) {
  if (run.fn != TrainerFn::fit || !run.load.loads_loops() || !plan.checkpoint_run_dir) return;
  const fs::path& root = run.options.default_root_dir;
  if (!begins_another_run(*plan.checkpoint_run_dir, root)) return;
  if (was_searched(run, choice))
    return run.print(cat("resume: a run continues in its folder, so trainer.default_root_dir, ", root,
                         ", has no effect. To begin another run there, use --ckpt_path with the checkpoint"));
  run.print(cat("resume: a new run continues from the checkpoint below trainer.default_root_dir, ", root,
                ", and the run of the checkpoint, ", *plan.checkpoint_run_dir,
                ", stays as it is. To continue that run in its folder, use its own default_root_dir"));
  plan.checkpoint_run_dir.reset();
}

// The checkpoint of rank 0, and the run folder that it was read from or that the run begins again in.
void choose_checkpoint(const RunState& run, const CheckpointChoice& choice, const LatestCheckpoints& latest,
                       ResumePlan& plan) {
  if (!choice) {
    if (run.fn != TrainerFn::fit) return;
    for (const auto& callback : run.callbacks)
      if (!plan.checkpoint) plan.checkpoint = callback->resume_candidate();
  } else if (*choice == "last" && latest.last) {
    plan.checkpoint = latest.last;
  } else if (*choice == "best" && latest.best) {
    plan.checkpoint = latest.best;
  } else {
    const bool searches = *choice == "auto";
    if (searches && run.fn != TrainerFn::fit)
      throw ConfigError("[trainer.ckpt_path] auto is only for fit; give last, best or a path.");
    auto resolved = resolve_checkpoint(*choice, run.options, run.components, [&](const fs::path& run_dir) {
      if (searches) plan.lock.emplace(run_dir);
    });
    plan.is_named = !is_last_or_best(*choice) && !was_searched(run, *choice);
    for (const auto& callback : run.callbacks)
      if (plan.is_named && callback->resume_candidate() == resolved.path) plan.is_named = false;
    plan.checkpoint = std::move(resolved.path);
    plan.content = std::move(resolved.content);
    if (searches) report_search(run, resolved, plan);
  }
  if (!plan.checkpoint) return;
  plan.checkpoint_run_dir = run_folder_of(*plan.checkpoint);
  if (choice) choose_run(run, *choice, plan);
  // A link is followed once, so that the report names the checkpoint itself.
  if (auto target = link_target(*plan.checkpoint)) {
    const fs::path link = plan.checkpoint->filename();
    if (link == run_layout::kLast || link == run_layout::kBest) plan.is_named = false;
    plan.checkpoint = std::move(target);
  }
}

}  // namespace

Restoring ResumePlan::restoring(RunState& run, Services& services) {
  resumed = {.path = *checkpoint,
             .same_run = run_dir && !begins_again && !run.run_dir.empty(),
             .unfinished = unfinished,
             .is_named = is_named};
  return {.run = run, .services = services, .content = *content, .load = run.load, .checkpoint = &resumed};
}

void ResumePlan::load(LoadPhase phase, RunState& run, Services& services) {
  if (!content) return;
  Restoring now = restoring(run, services);
  load_entries(phase, now, content->state);
}

ResumePlan plan_resume(RunState& run, const Hardware&, const CheckpointChoice& choice,
                       const LatestCheckpoints& latest) {
  ResumePlan plan;
  if (run.is_global_zero()) {
    choose_checkpoint(run, choice, latest, plan);
    if (run.components.begins_again) plan.restarted_run_dir = folder_without_checkpoint(run);
  }
  if (run.world_size() > 1) {
    const auto follow = [&](std::optional<fs::path>& own) {
      const std::string path = run.collectives().broadcast_text(own ? own->string() : std::string(), 0);
      own = path.empty() ? std::nullopt : std::optional<fs::path>(path);
    };
    follow(plan.checkpoint);
    follow(plan.checkpoint_run_dir);
    plan.is_named = !run.collectives().broadcast_text(plan.is_named ? "named" : "", 0).empty();
  }
  if (run.fn != TrainerFn::fit || !run.load.loads_loops()) plan.checkpoint_run_dir.reset();
  // Lock before reading, since an active run there may remove the checkpoint.
  if (plan.checkpoint_run_dir && !plan.lock && run.is_global_zero()) plan.lock.emplace(*plan.checkpoint_run_dir);
  const bool all = run.fn == TrainerFn::fit && run.load.loads_optimizer();
  if (const auto& verified = run.components.verified_checkpoint; verified && run.fn == TrainerFn::fit)
    if (auto content = verified->take(plan.checkpoint.value_or(fs::path()))) plan.content = std::move(content);
  if (plan.checkpoint && !plan.content)
    plan.content = read_checkpoint(*plan.checkpoint, all ? CheckpointParts::all : CheckpointParts::weights_and_state,
                                   run.load.verify, ReadTensors::when_needed);
  // Imported weights start a new run, no matter where they are.
  if (plan.content && plan.content->state.contains(checkpoint_keys::kImported)) run.load.weights_only = true;
  if (plan.content && run.fn == TrainerFn::fit && plan.content->state.contains(checkpoint_keys::kFabric) &&
      (run.load.loads_optimizer() || run.load.loads_loops() || run.load.loads_rng()))
    throw CheckpointError(
        "[trainer.fit] Fabric wrote the checkpoint, from a loop of the user, so a Trainer cannot resume from it. "
        "--load.weights_only true begins a new run with these weights.");
  if (plan.content && run.fn == TrainerFn::fit && run.fast_dev_run() && run.load.loads_loops()) {
    run.load.loops = false;
    run.print(cat(run.is_profile() ? "profile" : "fast_dev_run",
                  ": the weights and optimizers of the checkpoint are loaded, and the loops begin at step 0"));
  }
  if (plan.content && run.load.loads_loops()) plan.run_dir = plan.checkpoint_run_dir;
  plan.begins_again = !plan.run_dir && plan.restarted_run_dir;
  if (plan.begins_again) plan.run_dir = plan.restarted_run_dir;
  plan.unfinished = plan.run_dir && !plan.begins_again && run.is_global_zero() && !is_marked_finished(*plan.run_dir);
  if (!plan.run_dir || run.fast_dev_run() || run.options.barebones) plan.lock.reset();
  return plan;
}

}  // namespace fulgur::detail
