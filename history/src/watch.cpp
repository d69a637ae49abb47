#include "fulgur/history/watch.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "drawing/number_text.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "reading/config_keys.h"
#include "reading/curve.h"
#include "reading/log_file.h"
#include "reading/read_run.h"

namespace fulgur::history {
namespace {

constexpr size_t kSparkColumns = 24;
constexpr const char* kBetweenParts = " · ";

std::string fitted_line(const std::string& text, int64_t columns) {
  if (columns_of(text) <= columns) return text;
  return columns < 1 ? "" : text.substr(0, fit_columns(text, columns - 1).bytes) + "…";
}

std::optional<int64_t> limit_in(const ConfigKeys& config, std::string_view key) {
  const std::string* const text = find_key(config, key);
  int64_t limit = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), limit).ec != std::errc() || limit < 1)
    return std::nullopt;
  return limit;
}

}  // namespace

struct RunWatcher::Impl {
  using Clock = std::chrono::steady_clock;
  std::filesystem::path folder;
  RestartWait wait;
  Run run;
  std::filesystem::path reader_of;  ///< the log of `reader`
  std::optional<RowReader> reader;
  bool has_rows = false;  ///< it had rows, and is followed from then on
  std::vector<Curve> curves;
  std::vector<std::string> lines;
  StepMap epochs;
  double epoch = 0;
  int64_t step = 0;        ///< of the last row
  int64_t rows_shown = 0;  ///< rows of the log that have become lines
  Clock::time_point read_at;
  bool has_trained = false;                     ///< the lock was held when the watcher looked
  std::optional<Clock::time_point> free_since;  ///< the poll that first saw the lock free after that
  bool waits = false;                           ///< for a launcher

  Impl(const std::filesystem::path& given, const RestartWait& how_long) : folder(given), wait(how_long) {
    read_files();
    has_trained = run.status == RunStatus::running;
  }

  void read_files() {
    run = read_run_files(folder, Damage::throws);
    read_at = Clock::now();
  }

  // What was read belongs to a log that exists no more. The files say how far the run is without it.
  void forget_rows() {
    read_files();
    curves.clear();
    epochs = StepMap();
    epoch = 0;
    step = 0;
  }

  void take(const Row& row) {
    has_rows = true;
    add_row(run, reader->names(), row);
    curves.resize(std::max(curves.size(), run.metrics.size()));
    for (const auto& [column, value] : row.cells) curves[column].add(row.step, value);
    if (std::isfinite(row.epoch) && row.epoch > epoch) {
      epochs.add(step, row.epoch);
      epoch = row.epoch;
      if (epoch < 1e15) run.epochs = std::max(run.epochs, static_cast<int64_t>(epoch));
    }
    step = row.step;
  }

  std::string line_of(const Row& row) const {
    std::string line = cat("step ", row.step);
    if (std::isfinite(row.epoch)) line += cat("  epoch ", value_text(row.epoch));
    for (const auto& [column, value] : row.cells)
      line += cat("  ", escape_controls(reader->names()[column]), "=", value_text(value));
    return line;
  }

  // A logger may create its file later than another. False if there is no log yet.
  bool choose_log() {
    const auto log = log_file(folder, /*ended=*/false);
    if (log != reader_of) reader.emplace(log);
    reader_of = log;
    return !log.empty();
  }

  void read_rows(bool is_free) {
    lines.clear();
    if (!has_rows && !choose_log()) return;
    const int64_t starts = reader->starts();
    int64_t row_number = rows_shown;
    bool begun_again = false;
    const auto begin_again = [&] {
      if (starts == 0 || reader->starts() == starts || std::exchange(begun_again, true)) return;
      row_number = 0;
      forget_rows();
    };
    reader->read(
        [&](const Row& row) {
          begin_again();
          take(row);
          // A table that got a column is written again, and its rows are not new.
          if (++row_number > rows_shown) lines.push_back(line_of(row));
        },
        is_free && run.status == RunStatus::finished);
    begin_again();  // a log that has no rows any more
    if (begun_again && row_number < rows_shown)
      lines.push_back(row_number > 0 ? cat("the run was resumed; its log ends at step ", step)
                                     : "the run has begun again; its log has no rows");
    rows_shown = row_number;
  }

  // The files say how it ended. What was read of the log stays.
  void read_files_again() {
    auto metrics = std::move(run.metrics);
    const int64_t steps_read = run.steps, epochs_read = run.epochs;
    read_files();
    run.metrics = std::move(metrics);
    if (run.status == RunStatus::finished) return;
    run.steps = std::max(run.steps, steps_read);
    run.epochs = std::max(run.epochs, epochs_read);
  }

  // A process that stops by itself removes its lock and leaves no failure: no launcher restarts its group.
  bool launcher_may_restart() const {
    return limit_in(run.config, "trainer.strategy.init_args.max_restarts") &&
           (run.status == RunStatus::failed || has_lock_file(folder));
  }

  // Called once per poll, when the files are read.
  bool has_ended(bool held) {
    waits = false;
    if (held) {
      has_trained = true;
      free_since.reset();
      return false;
    }
    if (!has_trained || run.status == RunStatus::finished) return true;
    const bool first = !free_since;
    if (first) free_since = Clock::now();
    const bool launched = launcher_may_restart();
    const double free_s = std::chrono::duration<double>(Clock::now() - *free_since).count();
    if (free_s >= (launched ? wait.launcher_s : wait.usual_s)) return true;
    waits = launched;
    if (waits && first) lines.push_back(cat("the run has ended (", status_name(run.status), "); it may be restarted"));
    return false;
  }

  double seconds() const {
    const double since = std::chrono::duration<double>(Clock::now() - read_at).count();
    return run.duration_s.value_or(0) + (run.status == RunStatus::running ? since : 0);
  }

  std::optional<double> share_done() const {
    if (const auto steps = limit_in(run.config, "trainer.max_steps"))
      return std::min(1.0, static_cast<double>(run.steps) / static_cast<double>(*steps));
    const auto most = limit_in(run.config, "trainer.max_epochs");
    if (!most || epochs.empty()) return std::nullopt;
    return std::min(1.0, epochs.at(static_cast<double>(step)) / static_cast<double>(*most));
  }

  // How the run stands, as parts of a line.
  std::vector<std::string> head() const {
    const auto of = [&](const char* key) {
      const auto limit = limit_in(run.config, key);
      return limit ? cat("/", *limit) : std::string();
    };
    std::vector<std::string> parts = {escape_controls(run.name), run.status_text()};
    if (run.is_fit()) parts.push_back(cat("epoch ", run.epochs, of("trainer.max_epochs")));
    parts.push_back(cat("step ", run.steps, run.is_fit() ? of("trainer.max_steps") : ""));
    if (run.is_fit()) parts.push_back(duration_text(seconds()));
    if (waits) parts.emplace_back("it may be restarted");
    const auto done = share_done();
    if (done && *done > 0 && run.status == RunStatus::running)
      parts.push_back(cat("about ", duration_text(seconds() * (1 - *done) / *done), " left"));
    return parts;
  }
};

RunWatcher::RunWatcher(const std::filesystem::path& folder, const RestartWait& wait)
    : impl_(std::make_unique<Impl>(folder, wait)) {}
RunWatcher::~RunWatcher() = default;

bool RunWatcher::poll() {
  // Asked before reading: rows written before the lock is released are read.
  const bool held = RunLock::is_held(impl_->folder);
  // Between two polls of a free lock, a short part of the run may have trained.
  if (held != (impl_->run.status == RunStatus::running) || impl_->free_since) impl_->read_files_again();
  impl_->read_rows(!held);
  judge_evaluation(impl_->run);
  return !impl_->has_ended(held);
}

const std::vector<std::string>& RunWatcher::new_lines() const { return impl_->lines; }

std::string RunWatcher::screen(const TextStyle& style, int64_t rows) const {
  const int64_t columns = style.columns.value_or(80);
  std::vector<std::string> head;
  for (const std::string& part : impl_->head()) {
    const std::string longer = head.empty() ? "" : cat(head.back(), kBetweenParts, part);
    if (!head.empty() && columns_of(longer) <= columns)
      head.back() = longer;
    else
      head.push_back(part);
  }
  if (static_cast<int64_t>(head.size()) > rows) head.resize(static_cast<size_t>(std::max<int64_t>(rows, 1)));
  std::string text;
  for (const std::string& line : head) text += fitted_line(line, columns) + "\n";
  const int64_t rows_left = rows - static_cast<int64_t>(head.size());
  std::vector<TextRow> table;
  for (size_t i = 0; i < impl_->run.metrics.size(); ++i) {
    const MetricValues& metric = impl_->run.metrics[i];
    if (metric.count == 0 || static_cast<int64_t>(table.size()) >= rows_left) continue;
    std::vector<double> means;
    for (const Curve::Bucket& bucket : impl_->curves[i].at_most(kSparkColumns)) means.push_back(bucket.mean);
    table.push_back({fitted_line(escape_controls(metric.name), std::max<int64_t>(columns / 2, 8)),
                     value_text(metric.last), spark_line(means)});
  }
  const auto widths = column_widths(table);
  for (const TextRow& row : table) text += fitted_line(aligned(row, widths), columns) + "\n";
  return text;
}

std::string RunWatcher::summary() const {
  Run run = impl_->run;
  choose_monitor(run);
  std::string text = join(impl_->head(), kBetweenParts);
  if (const auto best = run.best())
    text +=
        cat(" · best ", escape_controls(run.monitor->metric), "=", value_text(best->first), " at step ", best->second);
  if (!run.reason.empty()) text += cat(" · ", escape_controls(run.reason));
  if (const std::string why = why_no_log(run); !why.empty()) text += cat(" · ", escape_controls(why));
  return text;
}

}  // namespace fulgur::history
