#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/device/device_clock.h"
#include "fulgur/core/options/options.h"

namespace fulgur::detail {

/// `trainer.profiler: simple`: how often each action of a run happened, and how long it took on the host and on the
/// device. An action may contain others. It waits for the device when the measurement begins after `skip_first` steps,
/// and at its end.
class SimpleProfiler final : public Profiler {
 public:
  struct Options {
    int64_t skip_first = 0, steps = 0;
    void fields(Fields& f);
  };
  struct Row {
    std::string action;
    int64_t calls = 0;
    double host_s = 0;
    double own_s = 0;                ///< the part of `host_s` that is not in inner actions
    std::optional<double> device_s;  ///< on the device's current stream; nullopt on the CPU
  };
  /// The name of the row of the time in which backward waits for the gradients of other ranks.
  static constexpr const char* kExchange = "gradient_exchange";

  /// `steps_done`: how many steps are done, at the end of each; `skip_first` and `steps` of the options count these. By
  /// default, a step is what `step_done` ends.
  explicit SimpleProfiler(Options options, std::function<int64_t()> steps_done = {})
      : options_(options), steps_done_(std::move(steps_done)) {}
  void start(const ProfiledRun& run) override;
  void begin(const ProfiledAction& action) override;
  void end(const ProfiledAction& action) noexcept override;
  void step_done() override;
  void exchange_is_awaited() override;
  void abandon() override { abandoned_ = true; }
  std::optional<Profile> stop() override;

  /// Sorted by host time, the longest first. Waits until the device has reached the end of the last action; after
  /// `abandon`, the device's time has only the actions whose end it has reached.
  std::vector<Row> rows();
  /// Whole batches that were measured.
  int64_t steps() const { return measured_; }
  /// The seconds from the begin of the first of them to the end of the last, on the host or on the device, whichever
  /// took longer. Waits like `rows`.
  double steps_s() const;

 private:
  struct Span {
    int64_t row;
    DeviceClock::Moment from, to;
  };
  struct Open {
    int64_t row;
    std::optional<DeviceClock::Moment> from;  // nullopt: it began outside the measurement
    double inner_s = 0;                       // of the actions inside
  };
  void begin_measuring();
  bool is_measuring() const { return started_ && !ended_; }
  Row& row(int64_t index, const std::string& name);
  /// Returns the seconds on the host.
  double add(Row& row, int64_t index, DeviceClock::Moment from);
  void count(const Span& span);
  void count_exchange();

  Options options_;
  std::optional<DeviceClock> clock_;
  std::function<int64_t()> steps_done_;
  std::optional<DeviceClock::Moment> started_, last_step_;  // of the measurement
  int64_t steps_ = 0;                                       // that are done
  int64_t measured_ = 0;
  bool ended_ = false, abandoned_ = false;
  std::vector<Row> rows_;  // by the index of the action; those without calls are not shown
  Row exchange_{.action = kExchange, .calls = 0, .host_s = 0, .own_s = 0, .device_s = {}};
  std::optional<DeviceClock::Moment> exchange_from_;
  std::vector<Open> open_;
  std::deque<Span> pending_;  // spans that the device has not reached
};

/// The rows as a table, with the share of each action in `elapsed_s`.
std::string action_table(const std::vector<SimpleProfiler::Row>& rows, double elapsed_s);

}  // namespace fulgur::detail
