#include "resume.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "run_folder.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMark = "finished.json";

std::optional<fs::path> link_target(const fs::path& link) {
  std::error_code error;
  if (!fs::is_symlink(link, error)) return std::nullopt;
  const fs::path target = fs::read_symlink(link, error);
  if (error) return std::nullopt;
  return target.is_absolute() ? target : link.parent_path() / target;
}

}  // namespace

std::string run_name(const TrainerOptions& options, const Parts& parts) {
  std::optional<std::string> name;
  if (!parts.loggers.empty()) name = parts.loggers.front()->run_name();
  else if (!options.logger.loggers.empty()) name = options.logger.loggers.front().create()->run_name();
  return name.value_or(kDefaultRunName);
}

std::optional<fs::path> find_run_to_resume(const TrainerOptions& options, const Parts& parts) {
  if (!parts.config_folder.empty() && fs::is_directory(parts.config_folder / "checkpoints")) return parts.config_folder;
  return newest_run_folder(options.default_root_dir, run_name(options, parts));
}

std::optional<ResumePoint> find_resume_point(const fs::path& run_dir) {
  auto summaries = list_checkpoints(run_dir / "checkpoints");
  // The last that was saved is the newest, also where the run had gone back to an earlier step. Those that cannot say come
  // first, so that each is told.
  std::stable_sort(summaries.begin(), summaries.end(), [](const CheckpointSummary& a, const CheckpointSummary& b) {
    if (a.problem || b.problem) return a.problem.has_value() && !b.problem;
    return a.origin.save_counter > b.origin.save_counter;
  });
  for (const CheckpointSummary& summary : summaries) {
    if (summary.weights_only) continue;
    try {
      if (summary.problem) throw CheckpointError(*summary.problem);
      return ResumePoint{summary.path, read_checkpoint(summary.path)};
    } catch (const CheckpointError& error) {
      log::error(cat(summary.path, " cannot be used and is passed over: ", error.what()));
    }
  }
  return std::nullopt;
}

std::optional<fs::path> run_folder_of(const fs::path& checkpoint) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal().parent_path();
  std::error_code error;
  if (folder.filename() != "checkpoints" || !fs::is_regular_file(folder.parent_path() / "config.yaml", error)) return std::nullopt;
  return folder.parent_path();
}

void mark_finished(const fs::path& run_dir, const std::string& reason, const Progress& progress) {
  if (run_dir.empty()) return;
  std::ofstream file(run_dir / kMark);
  file << nlohmann::ordered_json{{"reason", reason}, {"epochs", progress.epochs.completed}, {"global_step", progress.global_step}}.dump() << '\n';
}

void unmark_finished(const fs::path& run_dir) {
  std::error_code error;
  fs::remove(run_dir / kMark, error);
}

std::optional<FinishedRun> find_finished_run(const TrainerOptions& options, const Parts& parts) {
  const auto run = find_run_to_resume(options, parts);
  if (!run) return std::nullopt;
  std::ifstream file(*run / kMark);
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("reason") || !json["reason"].is_string() || !json.contains("epochs") || !json["epochs"].is_number_integer() ||
      !json.contains("global_step") || !json["global_step"].is_number_integer())
    return std::nullopt;
  FinishedRun finished{.run_dir = *run, .reason = json["reason"], .epochs = json["epochs"], .global_step = json["global_step"],
                       .last_checkpoint = link_target(*run / "checkpoints" / "last.ckpt"), .best_checkpoint = link_target(*run / "checkpoints" / "best.ckpt")};
  const bool by_limit = finished.reason == "max_epochs" || finished.reason == "max_steps";
  const bool more_epochs = !options.max_epochs || *options.max_epochs < 0 || *options.max_epochs > finished.epochs;
  const bool more_steps = options.max_steps < 0 || options.max_steps > finished.global_step;
  if (by_limit && more_epochs && more_steps) return std::nullopt;
  return finished;
}

}  // namespace fulgur::detail
