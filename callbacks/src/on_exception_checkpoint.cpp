#include "fulgur/callbacks/on_exception_checkpoint.h"

#include "checkpoint_name.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace fs = std::filesystem;

void OnExceptionCheckpoint::Options::fields(Fields& f) {
  f(dirpath, "dirpath",
    "Folder of the checkpoint, the same for all runs; null: checkpoints/ in the run folder, from which no run "
    "resumes automatically.");
  f(filename, "filename", "Name of the checkpoint, without .ckpt.");
}

OnExceptionCheckpoint::OnExceptionCheckpoint(Options options) : options_(std::move(options)) {
  const std::string& name = options_.filename;
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
    throw ConfigError(cat("[callbacks.OnExceptionCheckpoint] filename must be a name without folders; got '",
                          escape_controls(name), "'. Folders belong in dirpath."));
  if (!options_.dirpath) detail::refuse_link_name("OnExceptionCheckpoint", name);
  if (options_.dirpath) options_.dirpath = fs::absolute(*options_.dirpath).lexically_normal();
}

std::vector<fs::path> OnExceptionCheckpoint::written() const {
  return options_.dirpath ? checkpoints_named(*options_.dirpath, options_.filename) : std::vector<fs::path>();
}

// Releases one of this run, and removes one of another: all runs of the folder belong together.
void OnExceptionCheckpoint::remove(RunContext& run, const fs::path& path) const {
  run.published_checkpoints().release_checkpoint(path, state_key());
  if (run.is_global_zero() && path != run.last_checkpoint()) remove_checkpoint(path);
}

std::optional<fs::path> OnExceptionCheckpoint::resume_candidate() const {
  const auto paths = written();
  return paths.empty() ? std::nullopt : std::optional(paths.front());
}

void OnExceptionCheckpoint::setup(RunContext&, TrainerFn) { batches_at_start_.reset(); }

void OnExceptionCheckpoint::on_train_start(RunContext& run) {
  batches_at_start_ = run.progress().batches_total.completed;
}

void OnExceptionCheckpoint::on_exception(RunContext& run, const std::exception& error) {
  // Before the first batch there is nothing that the next run could not recreate.
  const bool trained = batches_at_start_ && run.progress().batches_total.completed > *batches_at_start_;
  if (run.fn() != TrainerFn::fit || run.fast_dev_run() || !trained) return;
  run.request_checkpoint({.name = options_.dirpath.value_or(run.checkpoint_dir()) / options_.filename,
                          .reason = cat("exception: ", error.what()),
                          .best = false,
                          .keep = true,
                          .weights_only = false,
                          .owner = state_key(),
                          .score = {}});
}

void OnExceptionCheckpoint::on_checkpoint_published(RunContext& run, const CheckpointInfo& info) {
  if (info.request.owner != state_key()) return;
  for (const fs::path& path : written())
    if (path != info.path) remove(run, path);
}

void OnExceptionCheckpoint::on_fit_end(RunContext& run) {
  if (run.fast_dev_run()) return;  // the run that failed is not trained further
  for (const fs::path& path : written()) remove(run, path);
}

[[maybe_unused]] static const bool registered_on_exception_checkpoint = Registry<Callback>::add<OnExceptionCheckpoint>(
    "OnExceptionCheckpoint", "Writes a checkpoint when a fit fails, from which the next fit resumes.");

}  // namespace fulgur
