#include "fulgur/callbacks/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "console_line.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur {
namespace {

int64_t terminal_columns() {
  struct winsize size {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && !(term && std::string_view(term) == "dumb");
}

bool wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return !no_color || *no_color == '\0';
}

constexpr std::string_view kFull = "█", kEmpty = "·";

std::string coloured(std::string text) {
  const size_t first = text.find(kFull);
  if (first == std::string::npos) return text;
  text.insert(text.rfind(kFull) + kFull.size(), "\x1b[0m");
  text.insert(first, "\x1b[35m");
  return text;
}

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "--:--";
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  const auto two = [](int64_t n) { return n < 10 ? cat("0", n) : cat(n); };
  if (whole >= 3600) return cat(whole / 3600, ":", two(whole / 60 % 60), ":", two(whole % 60));
  return cat(two(whole / 60), ":", two(whole % 60));
}

std::string metric_text(double value) {
  const double size = std::fabs(value);
  if (value == 0 || (size >= 0.001 && size < 10000)) return format_fixed(value, 3);
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void ProgressBar::Options::fields(Fields& f) {
  f(refresh, "refresh", "Time between two redraws on a terminal.").units({"s", "min", "h"});
  f(line_every, "line_every", "Time between two lines if stderr is not a terminal.").units({"s", "min", "h"});
}

ProgressBar::ProgressBar(Options options) : options_(options), console_(std::make_unique<detail::ConsoleLine>()) {}
ProgressBar::~ProgressBar() = default;

void ProgressBar::setup(RunContext& run, TrainerFn) {
  terminal_ = is_terminal();
  colour_ = terminal_ && wants_colour();
  several_loaders_ = {};
  validation_s_ = 0;
  validated_at_.reset();
  validation_spacing_.reset();
  if (!run.is_global_zero()) return;
  console_->install();
}

void ProgressBar::teardown(RunContext&, TrainerFn) {
  leave();
  console_->uninstall();
}

void ProgressBar::on_exception(RunContext&, const std::exception&) { leave(); }

// The shown text stays, and the next line starts below it. Reads no metrics, since the device may have failed.
void ProgressBar::leave() {
  console_->leave();
  active_ = false;
}

void ProgressBar::begin(std::string title, std::optional<int64_t> total, int64_t done_before) {
  bar_ = {.title = std::move(title),
          .total = total,
          .done = done_before,
          .done_before = done_before,
          .began = Clock::now()};
  // The first line comes after a full interval, the first bar at once.
  drawn_ = terminal_ ? Clock::time_point{} : bar_.began;
  active_ = console_->is_installed();
}

void ProgressBar::advance(RunContext& run, int64_t done) {
  bar_.done = done;
  if (!active_) return;
  const double since = std::chrono::duration<double>(Clock::now() - drawn_).count();
  if (since >= (terminal_ ? options_.refresh.value : options_.line_every.value)) draw(run, false);
}

void ProgressBar::draw(RunContext& run, bool last) {
  drawn_ = Clock::now();
  if (!terminal_) return console_->print(line(run, 0));
  std::string text = line(run, terminal_columns());
  if (colour_) text = coloured(std::move(text));
  last ? console_->finish(text) : console_->show(std::move(text));
}

void ProgressBar::end(RunContext& run) {
  if (active_) draw(run, true);
  active_ = false;
}

std::string ProgressBar::line(RunContext& run, int64_t columns) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - bar_.began).count();
  const double working = elapsed - bar_.paused_s;
  const double rate = working > 0 ? static_cast<double>(bar_.done - bar_.done_before) / working : 0;
  std::string tail = cat(" ", bar_.done, bar_.total ? cat("/", *bar_.total) : "", " [", clock_text(elapsed));
  if (bar_.total) tail += cat("<", clock_text(seconds_left(run, rate)));
  tail += cat(", ", format_fixed(rate, rate < 10 ? 2 : 1), " it/s]");
  std::string metrics;
  if (!run.sanity_checking())
    for (const auto& [name, value] : run.logged_metrics().progress_metrics())
      metrics += cat(" ", escape_controls(name), "=", metric_text(value));
  if (columns == 0) return cat(bar_.title, ":", tail, metrics);
  std::string bar;
  if (bar_.total && *bar_.total > 0) {
    bar = cat(" ", 100 * bar_.done / *bar_.total, "%");
    const int64_t room = columns - 1 - 8 - columns_of(cat(bar_.title, tail, metrics));
    if (const int64_t width = std::min<int64_t>(room, 30); width >= 5) {
      const int64_t full = width * bar_.done / *bar_.total;
      bar += " |";
      for (int64_t i = 0; i < width; ++i) bar += i < full ? kFull : kEmpty;
      bar += "|";
    }
  }
  std::string text = cat(bar_.title, ":", bar, tail, metrics);
  // A line that wraps cannot be cleared, and a full one wraps on some terminals: metrics are truncated first.
  text.resize(fit_columns(text, columns - 1).bytes);
  return text;
}

double ProgressBar::seconds_left(RunContext& run, double rate) const {
  const double batches = static_cast<double>(*bar_.total - bar_.done);
  if (batches > 0 && rate <= 0) return NAN;
  const bool training = run.fn() == TrainerFn::fit && run.stage() == RunningStage::train;
  return (batches > 0 ? batches / rate : 0) +
         (training ? static_cast<double>(validations_left(run)) * validation_s_ : 0);
}

int64_t ProgressBar::validations_left(RunContext& run) const {
  if (!run.has_validation()) return 0;
  if (run.extent().validates_each_epoch_end()) return validated_in_epoch_ ? 0 : 1;
  // Otherwise, validations are expected to be as far apart as the last two.
  if (!validation_spacing_ || *validation_spacing_ <= 0) return 0;
  const int64_t epoch_ends_at = epoch_began_at_ + *bar_.total;
  return std::max<int64_t>(0, (epoch_ends_at - *validated_at_) / *validation_spacing_);
}

void ProgressBar::begin_epoch(RunContext& run, int64_t done_before) {
  validated_in_epoch_ = false;
  epoch_began_at_ = run.progress().batches_total.completed - done_before;
  begin(cat("Epoch ", run.progress().epoch), run.num_batches(RunningStage::train), done_before);
}

void ProgressBar::on_train_start(RunContext& run) {
  if (run.progress().batches_total.completed == 0) validated_at_ = 0;
  // A fit that continues inside an epoch does not start it.
  if (run.progress().in_epoch()) begin_epoch(run, run.progress().batches.completed);
}

void ProgressBar::on_train_epoch_start(RunContext& run) { begin_epoch(run, 0); }

void ProgressBar::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) {
  advance(run, batch_idx + 1);
}

void ProgressBar::on_train_epoch_end(RunContext& run) { end(run); }

// The fit ended inside an epoch.
void ProgressBar::on_train_end(RunContext& run) { end(run); }

void ProgressBar::begin_evaluation(RunContext& run, const char* title, RunningStage stage) {
  evaluation_done_ = 0;
  evaluation_title_ = title;
  const bool several = several_loaders_[static_cast<size_t>(stage)];
  begin(several ? cat(title, " DataLoader 0") : title, run.num_batches(stage));
}

void ProgressBar::advance_evaluation(RunContext& run, int64_t loader_idx) {
  bool& several = several_loaders_[static_cast<size_t>(run.stage())];
  if (loader_idx > 0) several = true;
  if (several) bar_.title = cat(evaluation_title_, " DataLoader ", loader_idx);
  advance(run, ++evaluation_done_);
}

void ProgressBar::on_validation_start(RunContext& run) {
  train_ = bar_;
  train_active_ = active_;
  begin_evaluation(run, run.sanity_checking() ? "Sanity check" : "Validation", RunningStage::validate);
}

void ProgressBar::on_validation_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t loader_idx) {
  advance_evaluation(run, loader_idx);
}

void ProgressBar::on_validation_end(RunContext& run) {
  if (run.fn() != TrainerFn::fit) return end(run);
  const double took = std::chrono::duration<double>(Clock::now() - bar_.began).count();
  console_->clear();
  bar_ = train_;
  active_ = train_active_;
  if (run.sanity_checking()) return;
  bar_.paused_s += took;
  validation_s_ = took;
  validated_in_epoch_ = true;
  const int64_t now = run.progress().batches_total.completed;
  if (validated_at_ && now > *validated_at_) validation_spacing_ = now - *validated_at_;
  validated_at_ = now;
}

void ProgressBar::on_test_start(RunContext& run) { begin_evaluation(run, "Test", RunningStage::test); }
void ProgressBar::on_test_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t loader_idx) {
  advance_evaluation(run, loader_idx);
}
void ProgressBar::on_test_end(RunContext& run) { end(run); }

void ProgressBar::on_predict_start(RunContext& run) { begin_evaluation(run, "Predict", RunningStage::predict); }
void ProgressBar::on_predict_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t loader_idx) {
  advance_evaluation(run, loader_idx);
}
void ProgressBar::on_predict_end(RunContext& run) { end(run); }

[[maybe_unused]] static const bool registered_progress_bar =
    Registry<Callback>::add<ProgressBar>("ProgressBar", "Shows the progress of a run on stderr, as a bar or as lines.");

}  // namespace fulgur
