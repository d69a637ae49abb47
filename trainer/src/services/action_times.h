#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fulgur/core/device/device_clock.h"

namespace fulgur::detail {

/// Measures how long the actions of a run take (`trainer.profiler: simple`). An action may contain others. Until
/// `start`, nothing is measured. All calls come from the run's thread; none of those in the loops waits for the device.
class ActionTimes {
 public:
  struct Row {
    std::string action;  ///< `training_step`, or the class and the hook
    int64_t calls = 0;
    double host_s = 0;
    std::optional<double> device_s;  ///< on the device's current stream; nullopt on the CPU
  };

  /// Measures an action during its lifetime.
  class Timer {
   public:
    // Inline, since a step has many of them, and none measures unless the profiler is on.
    Timer(ActionTimes* times, Row* row) : times_(row ? times : nullptr), row_(row) {
      if (times_) begin();
    }
    ~Timer() {
      if (times_) end();
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    void begin();
    void end() noexcept;

    ActionTimes* times_;  // nullptr: nothing is measured
    Row* row_;
    std::optional<DeviceClock::Moment> from_ = {};
  };

  /// `with_events`: also measures on the device, with events on its current stream, which a recording of a graph must
  /// not contain.
  void start(at::Device device, bool with_events);
  bool is_started() const { return clock_.has_value(); }
  [[nodiscard]] Timer time(const char* action) { return Timer(this, is_started() ? &row(nullptr, action) : nullptr); }
  /// The time of a hook in objects of one class.
  [[nodiscard]] Timer time(const std::type_info& type, const char* hook) {
    return Timer(this, is_started() ? &row(&type, hook) : nullptr);
  }
  /// Seconds since `start`.
  double elapsed_s() const;
  /// Sorted by host time, the longest first. Waits until the device has reached the end of the last action.
  std::vector<Row> rows();

 private:
  struct Span {
    Row* row;
    DeviceClock::Moment from, to;
  };
  Row& row(const std::type_info* type, const char* hook);
  void add(Row& row, DeviceClock::Moment from);
  void count(const Span& span);

  std::optional<DeviceClock> clock_;
  std::chrono::steady_clock::time_point started_;
  std::map<std::pair<const std::type_info*, std::string_view>, Row> rows_;
  std::deque<Span> pending_;  // spans that the device has not reached
};

/// The rows as a table, with the share of each action in `elapsed_s`.
std::string action_table(const std::vector<ActionTimes::Row>& rows, double elapsed_s);

}  // namespace fulgur::detail
