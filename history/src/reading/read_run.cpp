#include "reading/read_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/config_keys.h"
#include "reading/log_file.h"
#include "reading/run_files.h"

namespace fulgur::history {
namespace fs = std::filesystem;
namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_run_folder(const fs::path& folder) {
  return is_there(folder / run_layout::kConfig) || is_there(folder / run_layout::kCheckpoints) ||
         is_there(folder / run_layout::kFinished) || is_there(folder / kLogs[0]) || is_there(folder / kLogs[1]);
}

/// Seconds since `file` was written.
std::optional<double> age_s(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  if (error) return std::nullopt;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}

/// A run that trains has trained since its newest checkpoint or its start, whichever is later.
double time_since_known(const Run& run) {
  double seconds = age_s(run.folder / run_layout::kConfig).value_or(0);
  const fs::path checkpoints = run.folder / run_layout::kCheckpoints;
  for (const CheckpointEntry& entry : run.checkpoints)
    if (const auto age = age_s(checkpoints / entry.name / "manifest.json")) seconds = std::min(seconds, *age);
  return std::max(seconds, 0.0);
}

void read_progress(Run& run) {
  const auto finished = read_finished(run.folder);
  const auto failure = read_failure(run.folder);
  const bool held = RunLock::is_held(run.folder);
  run.status = held       ? RunStatus::running
               : finished ? RunStatus::finished
               : failure  ? RunStatus::failed
                          : RunStatus::interrupted;
  run.checkpoints = read_checkpoints(run.folder / run_layout::kCheckpoints);
  for (const CheckpointEntry& entry : run.checkpoints) {
    run.steps = std::max(run.steps, entry.step);
    if (entry.fit_time_s) run.duration_s = std::max(run.duration_s.value_or(0), *entry.fit_time_s);
  }
  if (!run.checkpoints.empty()) {
    const fs::path newest = run.folder / run_layout::kCheckpoints / run.checkpoints.back().name;
    run.epochs = completed_epochs(newest).value_or(run.checkpoints.back().epoch);
    run.system = read_system(newest);
  }
  if (run.status == RunStatus::running) run.duration_s = run.duration_s.value_or(0) + time_since_known(run);
  if (run.status == RunStatus::finished) {
    run.reason = finished->reason;
    run.epochs = finished->epochs;
    run.steps = finished->steps;
    run.duration_s = finished->fit_time_s;
  } else if (run.status == RunStatus::failed) {
    run.reason = *failure;
  }
}

template <class Read>
void noting_damage(Run& run, Damage damage, Read read) {
  try {
    read();
  } catch (const Error& error) {
    if (damage == Damage::throws) throw;
    if (run.damage.empty()) run.damage = error.what();
  }
}

/// `version_10` after `version_9`.
bool natural_less(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [&](std::string_view text, size_t& at) {
      const size_t begin = std::min(text.find_first_not_of('0', at), text.size());
      at = begin;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = number(a, i), y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j;
}

constexpr int kDeepest = 5;

/// Other folders may have a `config.yaml` or `checkpoints` too, such as that of a project.
bool is_fit_folder(const fs::path& folder) {
  if (is_there(folder / run_layout::kFinished) || is_there(folder / run_layout::kFailed)) return true;
  return is_there(folder / run_layout::kCheckpoints) &&
         (is_there(folder / run_layout::kConfig) || is_there(folder / kLogs[0]) || is_there(folder / kLogs[1]) ||
          has_lock_file(folder));
}

void find_below(const fs::path& folder, int depth, std::vector<fs::path>& runs) {
  if (is_fit_folder(folder)) return runs.push_back(folder);
  if (depth == kDeepest) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored) &&
        !entry->path().filename().string().starts_with('.'))
      find_below(entry->path(), depth + 1, runs);
  }
}

ConfigError no_run_below(const fs::path& folder) {
  return ConfigError(cat("[history.run] there is no run below ", escape_controls(folder.string()),
                         ". Give a run folder, or a folder that contains run folders, such as fulgur_logs."));
}

}  // namespace

bool has_lock_file(const fs::path& run_dir) { return is_there(run_dir / "run.lock"); }

Run read_run_files(const fs::path& given, Damage damage) {
  std::error_code error;
  const fs::path folder = given.filename().empty() ? given.parent_path() : given;
  if (!fs::is_directory(folder, error))
    throw ConfigError(cat("[history.run] a run is a folder; got ", escape_controls(given.string()),
                          is_there(folder) ? ", which is a file" : ", which does not exist",
                          ". Give a run folder, such as fulgur_logs/version_0."));
  if (!is_run_folder(folder))
    throw ConfigError(cat("[history.run] a run folder has a config, a log or checkpoints; ",
                          escape_controls(given.string()),
                          " has none of them. Give a run folder, such as fulgur_logs/version_0."));
  Run run;
  run.folder = folder;
  const fs::path normal = fs::absolute(folder).lexically_normal();
  run.name = (normal.filename().empty() ? normal.parent_path() : normal).filename().string();
  noting_damage(run, damage, [&] {
    const ConfigNode config = read_config(folder);
    run.config = flatten(config);
    run.monitor = monitor_in(config);
    run.verb = read_verb(folder);
  });
  read_progress(run);
  return run;
}

void add_row(Run& run, const std::vector<std::string>& names, const Row& row) {
  run.steps = std::max(run.steps, row.step);
  for (const auto& [column, value] : row.cells) {
    while (run.metrics.size() <= column) {
      run.metrics.emplace_back();
      run.metrics.back().name = names[run.metrics.size() - 1];
    }
    MetricValues& metric = run.metrics[column];
    ++metric.count;
    metric.last = value;
    metric.last_step = row.step;
    if (!std::isfinite(value)) continue;
    if (!metric.least || value < *metric.least) metric.least = value, metric.least_step = row.step;
    if (!metric.most || value > *metric.most) metric.most = value, metric.most_step = row.step;
  }
}

void judge_evaluation(Run& run) {
  if (run.is_fit() || run.status != RunStatus::interrupted) return;
  const bool has_rows =
      std::any_of(run.metrics.begin(), run.metrics.end(), [](const MetricValues& metric) { return metric.count > 0; });
  if (has_rows || is_there(run.folder / "predictions.jsonl")) run.status = RunStatus::finished;
}

void choose_monitor(Run& run) {
  if (run.monitor) return;
  for (const char* name : {"val_loss", "train_loss"}) {
    if (!run.find_metric(name)) continue;
    run.monitor = Monitor{name, true};
    return;
  }
}

Run read_run_rows(const fs::path& folder, const RowReader::Sink& each_row, Damage damage) {
  Run run = read_run_files(folder, damage);
  const bool finished = run.status == RunStatus::finished;
  const fs::path log =
      log_file(run.folder, /*ended=*/(finished || run.status == RunStatus::failed) && !has_lock_file(run.folder));
  double last_epoch = 0;
  if (!log.empty()) {
    noting_damage(run, damage, [&] {
      RowReader reader(log);
      reader.read(
          [&](const Row& row) {
            add_row(run, reader.names(), row);
            if (std::isfinite(row.epoch)) last_epoch = std::max(last_epoch, row.epoch);
            each_row(row);
          },
          finished);
      // A column without a value is still a metric's.
      for (size_t i = run.metrics.size(); i < reader.names().size(); ++i) {
        run.metrics.emplace_back();
        run.metrics.back().name = reader.names()[i];
      }
    });
  }
  // The epoch of a row is under way, or its last row; those before it are complete.
  if (!finished && last_epoch < 1e15) run.epochs = std::max(run.epochs, static_cast<int64_t>(last_epoch));
  choose_monitor(run);
  judge_evaluation(run);
  return run;
}

Run read_run(const fs::path& folder, Damage damage) {
  return read_run_rows(
      folder, [](const Row&) {}, damage);
}

std::vector<fs::path> runs_at(const fs::path& folder) {
  std::error_code error;
  // read_run describes what is wrong with the others.
  if (!fs::is_directory(folder, error) || is_run_folder(folder)) return {folder};
  auto runs = find_runs(folder);
  if (runs.empty()) throw no_run_below(folder);
  return runs;
}

std::vector<fs::path> find_runs(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error))
    throw ConfigError(cat("[history.runs] runs are below a folder; got ", escape_controls(root.string()),
                          is_there(root) ? ", which is a file" : ", which does not exist",
                          ". Give the folder that contains the run folders, such as fulgur_logs."));
  std::vector<fs::path> runs;
  find_below(root, 0, runs);
  std::sort(runs.begin(), runs.end(),
            [](const fs::path& a, const fs::path& b) { return natural_less(a.string(), b.string()); });
  return runs;
}

fs::path newest_run(const fs::path& folder) {
  if (is_run_folder(folder)) return folder;
  // A run that trains is newer than any other.
  struct Age {
    bool trains = false;
    fs::file_time_type began;
    auto operator<=>(const Age&) const = default;
  };
  fs::path newest;
  Age newest_age;
  for (const fs::path& run : find_runs(folder)) {
    std::error_code error;
    Age age{RunLock::is_held(run), fs::last_write_time(run / run_layout::kConfig, error)};
    if (error) age.began = fs::file_time_type::min();
    if (!newest.empty() && age < newest_age) continue;
    newest = run;
    newest_age = age;
  }
  if (newest.empty()) throw no_run_below(folder);
  return newest;
}

}  // namespace fulgur::history
