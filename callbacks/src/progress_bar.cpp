#include "fulgur/callbacks/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "fulgur/core/text.h"

namespace fulgur {
namespace {

int64_t terminal_columns() {
  struct winsize size {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
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

void put(const std::string& text) {
  const char* next = text.data();
  size_t left = text.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, next, left);
    if (written <= 0) return;  // a closed console does not stop a run
    next += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace

void ProgressBar::Options::fields(Fields& f) {
  f(refresh_s, "refresh_s", "Seconds between two drawings on a terminal.").at_least(0.01);
  f(line_every_s, "line_every_s", "Seconds between two lines where stderr is no terminal.").at_least(0.01);
}

ProgressBar::ProgressBar(Options options) : options_(options) {}

ProgressBar::~ProgressBar() {
  if (installed_) log::set_console_guard(nullptr);
}

void ProgressBar::setup(RunContext& run, Verb) {
  terminal_ = isatty(STDERR_FILENO) == 1;
  if (!run.is_global_zero()) return;
  log::set_console_guard(this);
  installed_ = true;
}

void ProgressBar::teardown(RunContext&, Verb) {
  clear();
  active_ = false;
  if (installed_) log::set_console_guard(nullptr);
  installed_ = false;
}

void ProgressBar::clear() {
  if (terminal_ && !shown_.empty()) put("\r\x1b[2K");
  shown_.clear();
}

void ProgressBar::before_line() {
  if (active_ && terminal_ && !shown_.empty()) put("\r\x1b[2K");
}

void ProgressBar::after_line() {
  if (active_ && terminal_ && !shown_.empty()) put(shown_);
}

void ProgressBar::begin(std::string title, std::optional<int64_t> total) {
  title_ = std::move(title);
  total_ = total;
  done_ = 0;
  began_ = Clock::now();
  // The first line comes after a full interval, the first bar at once.
  drawn_ = terminal_ ? Clock::time_point{} : began_;
  active_ = installed_;
}

void ProgressBar::advance(RunContext& run, int64_t done) {
  done_ = done;
  if (!active_) return;
  const double since = std::chrono::duration<double>(Clock::now() - drawn_).count();
  if (since >= (terminal_ ? options_.refresh_s : options_.line_every_s)) draw(run, false);
}

void ProgressBar::draw(RunContext& run, bool last) {
  drawn_ = Clock::now();
  if (!terminal_) {
    put(line(run, 0) + "\n");
    return;
  }
  shown_ = line(run, terminal_columns());
  put("\r\x1b[2K" + shown_ + (last ? "\n" : ""));
  if (last) shown_.clear();
}

std::string ProgressBar::line(RunContext& run, int64_t columns) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - began_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
  std::string counts = total_ ? cat(done_, "/", *total_) : cat(done_);
  std::string tail = cat(" ", counts, " [", clock_text(elapsed));
  if (total_) tail += cat("<", rate > 0 ? clock_text(static_cast<double>(*total_ - done_) / rate) : "--:--");
  tail += cat(", ", format_fixed(rate, rate < 10 ? 2 : 1), " it/s]");
  std::string metrics;
  if (!run.sanity_checking())
    for (const auto& [name, value] : run.progress_metrics()) metrics += cat(" ", escape_controls(name), "=", metric_text(value));
  if (columns == 0) return cat(title_, ":", tail, metrics);
  const auto room = columns - 1 - static_cast<int64_t>(title_.size() + tail.size() + metrics.size()) - 8;
  std::string bar;
  if (total_ && *total_ > 0) {
    bar = cat(" ", static_cast<int64_t>(100 * done_ / *total_), "%");
    if (const int64_t width = std::min<int64_t>(room, 30); width >= 5) {
      const int64_t full = width * done_ / *total_;
      bar += " |";
      for (int64_t i = 0; i < width; ++i) bar += i < full ? "█" : "·";
      bar += "|";
    }
  }
  std::string text = cat(title_, ":", bar, tail, metrics);
  // A line that wraps cannot be cleared: metrics are cut first. The bar's characters are one column each.
  auto visible = static_cast<int64_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  while (visible >= columns && !text.empty()) {
    while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    text.pop_back();
    --visible;
  }
  return text;
}

void ProgressBar::end(RunContext& run) {
  if (active_) draw(run, true);
  active_ = false;
}


void ProgressBar::on_train_epoch_start(RunContext& run) { begin(cat("Epoch ", run.progress().epoch), run.num_batches(Stage::train)); }

void ProgressBar::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) { advance(run, batch_idx + 1); }

void ProgressBar::on_train_epoch_end(RunContext& run) { end(run); }

void ProgressBar::on_validation_start(RunContext& run) {
  evaluation_done_ = 0;
  train_title_ = title_;
  train_total_ = total_;
  train_done_ = done_;
  train_began_ = began_;
  begin(run.sanity_checking() ? "Sanity check" : "Validation",
        run.sanity_checking() ? std::nullopt : run.num_batches(Stage::validate));
}

void ProgressBar::on_validation_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) { advance(run, ++evaluation_done_); }

void ProgressBar::on_validation_end(RunContext& run) {
  if (run.verb() != Verb::fit) return end(run);
  clear();
  if (run.sanity_checking()) {
    active_ = false;
    return;
  }
  title_ = train_title_;
  total_ = train_total_;
  done_ = train_done_;
  began_ = train_began_;
}

void ProgressBar::on_test_start(RunContext& run) {
  evaluation_done_ = 0;
  begin("Test", run.num_batches(Stage::test));
}
void ProgressBar::on_test_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) { advance(run, ++evaluation_done_); }
void ProgressBar::on_test_end(RunContext& run) { end(run); }

void ProgressBar::on_predict_start(RunContext& run) {
  evaluation_done_ = 0;
  begin("Predict", run.num_batches(Stage::predict));
}
void ProgressBar::on_predict_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) { advance(run, ++evaluation_done_); }
void ProgressBar::on_predict_end(RunContext& run) { end(run); }

[[maybe_unused]] static const bool registered =
    Registry<Callback>::add<ProgressBar>("ProgressBar", "Shows the progress of a run on stderr, as a bar or as lines.");

}  // namespace fulgur
