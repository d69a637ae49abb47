#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fulgur/core/collectives.h"
#include "fulgur/core/log_options.h"
#include "fulgur/core/stage.h"
#include "fulgur/core/state_tree.h"
#include "fulgur/core/tensor.h"
#include "run/device_scalars.h"
#include "run/host_numbers.h"

namespace fulgur::detail {

/// Kind of the hook that logs: it decides the defaults of on_step and on_epoch and what is allowed.
enum class LogScope { forbidden, train_step, train_epoch, evaluation_step, evaluation_epoch };

/// Everything that was logged and not yet given to loggers and callbacks. One slot per (name, scope, stage). A value on
/// the CPU is added on the host into a double; a value on a device is added there and read when its window is closed.
class LogStore {
 public:
  /// Adds a scalar. `weight` is the number of samples it stands for (counts in means only).
  void log(std::string_view name, LogScope scope, RunningStage stage, const Tensor& value, double weight,
           const LogOptions& options);
  void log(std::string_view name, LogScope scope, RunningStage stage, double value, double weight,
           const LogOptions& options);

  /// A batch of training begins.
  void start_batch() { logged_in_batch_.clear(); }
  /// `Window::finite` of the running step window of training tells whether this value, a scalar on a device, is finite.
  /// Costs nothing if the same tensor was logged in this batch as a mean or a sum, whose window says as much.
  void watch(const Tensor& value);
  /// Of the running window; waits for the device.
  bool watched_is_finite();
  /// Forgets what the running window has watched.
  void forget_watched();
  /// From here on numbers of the host are noted as they are logged; in a run on the CPU, a tensor is not one of them.
  void start_noting(at::Device device);
  HostNumbers take_noted();

  /// One addition of a recorded step.
  struct Addition;
  /// From here on additions go to `device` alone; what the host counts is given by `take_recording`, for each time that
  /// the recorded step is launched. So are numbers of the host, as they are now; they are noted too.
  void start_recording(at::Device device);
  std::vector<Addition> take_recording();
  /// Before and after each launch.
  void before_replay(const std::vector<Addition>& additions);
  void after_replay(const std::vector<Addition>& additions);

  /// A closed window of values, which may be on their way from a device.
  class Window;
  /// Closes the running windows of the step values of `stage`, and begins to read them. Their next windows begin. Does
  /// not wait for a GPU.
  Window close_step_window(RunningStage stage);
  /// The same for epoch values.
  Window close_epoch(RunningStage stage);
  /// The values of a closed window, as means, sums, minima or maxima. Waits for them. With several ranks, which must
  /// all call it, and which throws if an exchange on the device has failed: step values of all ranks with sync_dist,
  /// else rank 0's; epoch values of all ranks. A rank that has failed alone has no `collectives`, and leaves out values
  /// that it would have to exchange.
  Metrics take(Window window, Collectives* collectives);
  /// Forgets running epochs of `stage` (sanity check).
  void reset(RunningStage stage);

  /// Newest value: of a step metric the running window, else its last; of an epoch metric the last epoch's. Reads
  /// devices.
  std::optional<double> newest(std::string_view final_name);
  /// The last value that was taken.
  std::optional<double> written(std::string_view final_name) const;
  std::optional<RunningStage> stage_of(std::string_view final_name) const;
  std::vector<std::string> names() const;
  /// Values of what was logged with prog_bar, the newest that the host has. Does not wait for a GPU: each call begins
  /// to read it, and gives what an earlier call has begun.
  Metrics progress_values();
  /// Newest values of all.
  const std::vector<std::pair<std::string, double>>& published() const { return published_; }

  /// With `late`, numbers on a device are in it as `late_number`s; else this waits for them.
  StateTree state(bool late = false);
  /// Of `state`, the values that were taken.
  StateTree published_state() const;
  void load_state(const StateTree& state);
  /// Adds the running values of another rank.
  void add_running(LogStore& other);
  /// Restarts windows and epochs.
  void forget_running();

 private:
  struct Accumulator {
    double value = 0;  // sum of value · weight, plain sum, minimum or maximum
    double weight = 0;
    int64_t count = 0;
    // The same, of values on a device, times `device_factor`; float64, so that sums over an epoch are exact. The first
    // value of a window is copied to it, which costs no separate start: a mean's first weight waits as the factor.
    Tensor device;
    DeviceScalars::Place place;
    bool device_used = false;
    double device_factor = 1, device_weight = 0;
    int64_t watched = 0;  // of the additions since the window began, those that `watch` relies on
  };
  struct Slot {
    std::string name;
    LogScope scope;
    RunningStage stage;
    LogOptions options;
    bool on_step = false, on_epoch = false;
    bool has_steps = false;      // a step value was logged
    bool of_checkpoint = false;  // nothing was logged since it was loaded
    Accumulator step, epoch;
  };
  /// Throws an Error for options that the slot's hook cannot have.
  static void take_options(Slot& slot, const LogOptions& options);
  struct Key {
    std::string_view name;
    LogScope scope;
    RunningStage stage;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>{}(key.name) * 31 + static_cast<size_t>(key.scope) * 7 +
             static_cast<size_t>(key.stage);
    }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const {
      return a.scope == b.scope && a.stage == b.stage && a.name == b.name;
    }
  };

  // A value on a device that was logged in this batch. Its memory is kept, so that it is no other value's meanwhile.
  struct LoggedInBatch {
    c10::Storage memory;
    const void* data;
    uint32_t version;
    Accumulator* to;
    std::optional<size_t> recorded;  // which of the recorded additions
  };
  using Running = std::pair<std::shared_ptr<Slot>, Accumulator>;  // a closed window may outlive the store's slots

  void add_number(Slot& slot, double value, double weight);
  void add_device(Accumulator& to, DeviceScalars& scalars, const Tensor& value, double weight, Reduce reduce);
  void remember(const Tensor& value, Accumulator& to);
  /// The value that the device's part begins with.
  static double move_to_device(Accumulator& a, Reduce reduce);
  Slot& slot(std::string_view name, LogScope scope, RunningStage stage, const LogOptions& options);
  DeviceScalars& scalars(RunningStage stage, bool epoch) { return device_scalars_[{stage, epoch}]; }
  static bool finite(const Accumulator& a, const DeviceScalars::Reading& reading);
  static void add(Accumulator& to, double value, double weight, Reduce reduce);
  /// Brings what is on the device into `a.value`; `value` is what `a.device` had.
  static void fold(Accumulator& a, Reduce reduce, double value);
  static void fold(Accumulator& a, Reduce reduce, const DeviceScalars::Reading& reading);
  static void combine(Accumulator& to, const Accumulator& from, Reduce reduce);
  static double start_value(Reduce reduce);
  static void restart(Accumulator& a, Reduce reduce);
  static double finish(const Accumulator& a, Reduce reduce);
  Window close(RunningStage stage, bool epoch);
  struct Plan;
  /// What this rank exchanges of a window whose values are `own`.
  Plan plan_of(const std::vector<Running>& own, RunningStage stage, bool epoch) const;
  /// Makes slots for the metrics of all ranks. `plan` is the text of this rank's.
  void learn(const std::string& plan, RunningStage stage, Collectives& collectives);
  /// Replaces the values of the window by those of all ranks. What a rank sends does not depend on their number, unless
  /// one of them has logged a metric that another does not know yet.
  void merge(Window& window, Collectives& collectives);
  void publish(const std::string& name, double value, RunningStage stage);
  /// The running windows of `stage`, read with a wait.
  void read_running(RunningStage stage);

  std::optional<at::Device> recording_on_;
  std::vector<Addition> recorded_;
  std::optional<at::Device> noting_on_;
  HostNumbers noted_;
  std::vector<std::shared_ptr<Slot>> slots_;           // in the order of their first use
  std::unordered_map<Key, Slot*, Hash, Equal> index_;  // keys point into the slots' names
  std::vector<std::pair<std::string, double>> published_;
  std::map<std::string, RunningStage, std::less<>> stages_;
  std::map<std::pair<RunningStage, bool>, DeviceScalars> device_scalars_;  // by stage; of epochs
  std::vector<LoggedInBatch> logged_in_batch_;
  Accumulator watch_;  // NaN or infinite after such a value
  // What the progress bar has asked for, on its way.
  struct Asked {
    std::vector<Running> values;
    DeviceScalars::Reading reading;
  };
  void receive_asked();
  std::vector<Asked> asked_;  // of each stage
  std::map<std::string, double, std::less<>> shown_;
};

class LogStore::Window {
 public:
  /// Whether all that was watched is finite. Waits for the values.
  bool finite() const;

 private:
  friend class LogStore;
  RunningStage stage_{};
  bool epoch_ = false;
  std::vector<Running> values_;  // as they were when the window was closed
  std::optional<Accumulator> watch_;
  DeviceScalars::Reading reading_;
};

inline LogStore::Window LogStore::close_step_window(RunningStage stage) { return close(stage, /*epoch=*/false); }
inline LogStore::Window LogStore::close_epoch(RunningStage stage) { return close(stage, /*epoch=*/true); }

struct LogStore::Addition {
  Accumulator* to;
  double weight;
  Reduce reduce;
  std::optional<double> number = {};  // of the host; nothing if the device adds
  bool watched = false;
};

}  // namespace fulgur::detail
