#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/stage.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"
#include "logging/device_scalars.h"
#include "logging/host_numbers.h"

namespace fulgur::detail {

/// Kind of the hook that logs: determines the defaults of on_step and on_epoch, and which options are allowed. `muted`:
/// logging does nothing, since a closure is evaluated again.
enum class LogScope { forbidden, train_step, train_epoch, evaluation_step, evaluation_epoch, muted };

/// Options of a logged value as data, for checkpoints and for other ranks.
StateTree log_options_state(const LogOptions& options);
LogOptions log_options_from(const StateTree& state);

/// All values that were logged and not yet passed to loggers and callbacks. One slot per (name, scope, stage). A CPU
/// value is accumulated on the host into a double; a device value is accumulated there and read when its window is
/// closed.
class LogStore {
 public:
  /// Adds a scalar. `weight` is the number of samples it stands for (used only in means).
  void log(std::string_view name, LogScope scope, RunningStage stage, const Tensor& value, double weight,
           const LogOptions& options);
  void log(std::string_view name, LogScope scope, RunningStage stage, double value, double weight,
           const LogOptions& options);

  /// Whether values of training steps that are added over the ranks are added for this rank: another one logs the same
  /// if layers are divided among both.
  void count_training(bool counts) { counts_ = counts; }

  /// A batch of training begins.
  void start_batch() {
    logged_in_batch_.clear();
    ++batch_;
  }
  /// Makes `Window::finite` of the current training step window cover this value, a scalar on a device. Free if the
  /// same tensor was logged in this batch as a mean or a sum, whose window provides the same information.
  void watch(const Tensor& value);
  /// Whether all values of the current window are finite; synchronizes with the device.
  bool watched_is_finite();
  /// Forgets what the current window has watched.
  void forget_watched();
  /// The same, and discards the values of step windows that stood for watched ones.
  void discard_watched();
  /// From here on, host numbers are recorded as they are logged; in a run on the CPU, a tensor does not count as one.
  void start_noting(at::Device device);
  HostNumbers take_noted();
  /// Whether the work under way is that of a step which may be recorded, or is being recorded.
  bool is_noting() const { return noting_on_.has_value(); }
  bool is_recording() const { return recording_on_.has_value(); }

  /// One accumulation in a recorded step.
  struct Addition;
  /// From here on, only device accumulations are executed; the host's counting is returned by `take_recording`, to be
  /// repeated for each launch of the recorded step of `stage`. Host numbers are included with their current values, and
  /// are also recorded as by `start_noting`. On the CPU the recorded step only copies its values, and the host
  /// accumulates them after each launch with the bits of an eager step.
  void start_recording(at::Device device, RunningStage stage = RunningStage::train);
  /// Before a step that calls `start_recording`: what the host writes is no part of the step.
  void before_recording(at::Device device);
  std::vector<Addition> take_recording();
  /// Before and after each launch.
  void before_replay(const std::vector<Addition>& additions);
  void after_replay(const std::vector<Addition>& additions);
  /// For a step on the CPU that was executed while it was recorded, and is not replayed.
  void after_execution(const std::vector<Addition>& additions);
  /// Whether two recordings of a step log the same names with the same weights and host numbers.
  static bool same_additions(const std::vector<Addition>& one, const std::vector<Addition>& other);
  /// How often values were discarded together with what additions of recordings refer to.
  int64_t discards() const { return discards_; }

  /// A closed window of values, which may still be in transfer from a device.
  class Window;
  /// Closes the current windows of the step values of `stage`, and starts reading them. Their next windows begin. Does
  /// not wait for a GPU.
  Window close_step_window(RunningStage stage);
  /// The same for epoch values.
  Window close_epoch(RunningStage stage);
  /// The values of a closed window, as means, sums, minima or maxima. Waits for them. With several ranks, which must
  /// all call it: step values of all ranks with sync_dist, else rank 0's; epoch values of all ranks; throws if an
  /// exchange on the device has failed. A rank that has failed alone passes no `collectives`, and omits values that
  /// would need an exchange.
  Metrics take(Window window, Collectives* collectives);
  /// Discards current epochs of `stage` (sanity check).
  void reset(RunningStage stage);

  /// Newest value: for a step metric from the current window, else its last; for an epoch metric the last epoch's. Of a
  /// name that both training and validation log, validation's. Reads devices.
  std::optional<double> newest(std::string_view final_name);
  /// From now on the last value of step metrics with these names is kept for `monitored`.
  void monitor(const std::vector<std::string>& final_names);
  /// The value on which callbacks base decisions: for a step metric that of the last batch, no matter which rows were
  /// written; otherwise like `newest`. With several ranks, which must all call it, the value is the same on all: rank
  /// 0's, or that of all ranks with sync_dist. Reads devices.
  std::optional<double> monitored(std::string_view final_name, Collectives& collectives);
  /// The last value taken; of a name that both training and validation log, validation's.
  std::optional<double> written(std::string_view final_name) const;
  std::optional<RunningStage> stage_of(std::string_view final_name) const;
  std::vector<std::string> names() const;
  /// The same, including metrics that will have a value once their window or epoch ends.
  std::vector<std::string> known_names() const;
  /// Newest values on the host of what was logged with prog_bar. Does not wait for a GPU: each call starts a read, and
  /// returns what an earlier call has read.
  Metrics progress_values();
  /// Newest values of all metrics.
  const std::vector<std::pair<std::string, double>>& published() const { return taken_.published; }
  /// All taken values, to which an evaluation that fails returns.
  struct Taken {
    std::vector<std::pair<std::string, double>> published;
    std::map<std::string, double, std::less<>> validated;  // of `published`, the last of validation by that name
    std::map<std::string, RunningStage, std::less<>> stages;
  };
  const Taken& taken() const { return taken_; }
  void restore(Taken values) { taken_ = std::move(values); }

  /// With `late`, numbers on a device are stored as `late_number`s; else this waits for them.
  StateTree state(bool late = false);
  /// The part of `state` with the taken values.
  StateTree published_state() const;
  void load_state(const StateTree& state);
  /// The windows and epochs of training that are under way.
  struct Mark;
  Mark mark() const;
  void restore(const Mark& mark);
  /// Adds the current values of another rank.
  void add_running(LogStore& other);
  /// Restarts windows and epochs.
  void forget_running();

 private:
  bool counts_ = true;  // see `count_training`
  struct Accumulator {
    double value = 0;  // sum of value · weight, plain sum, minimum or maximum
    double weight = 0;
    int64_t count = 0;
    // The same for device values, times `device_factor`; float64, so that sums over an epoch are exact. The first value
    // of a window is copied to it, which saves an initialization: a mean's first weight is kept as the factor.
    Tensor device;
    DeviceScalars::Place place;
    bool device_used = false;
    double device_factor = 1, device_weight = 0;
    int64_t watched = 0;  // number of this window's accumulations that `watch` relies on
  };
  struct Slot {
    std::string name;
    LogScope scope;
    RunningStage stage;
    LogOptions options;
    bool on_step = false, on_epoch = false;
    bool has_steps = false;      // a step value was logged
    bool of_checkpoint = false;  // nothing was logged since it was loaded
    bool monitored = false;      // `latest` is kept
    Accumulator step, epoch;
    /// The last batch's value. Several calls in a batch (micro-batches, replicas) are reduced like those of a window.
    struct Latest {
      Accumulator value;
      int64_t batch = -1;
      bool of_one_call = true;  // the last: nothing is reduced
    };
    Latest latest;
    /// Whether the step values have this name in rows, or are newer than the epoch value of that name.
    bool steps_are(std::string_view final_name) const;
  };
  /// Throws an Error for options not allowed in the slot's hook.
  static void take_options(Slot& slot, const LogOptions& options);
  struct Key {
    std::string_view name;
    LogScope scope;
    RunningStage stage;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>{}(key.name) * 31 + static_cast<size_t>(key.scope) * 7 +
             static_cast<size_t>(key.stage);
    }
  };

  // A device value logged in this batch. Its memory is kept alive, so that it is not reused for another value.
  struct LoggedInBatch {
    c10::Storage memory;
    const void* data;
    uint32_t version;
    Accumulator* to;
    std::optional<size_t> recorded;  // index among the recorded accumulations
  };
  using Running = std::pair<std::shared_ptr<Slot>, Accumulator>;  // a closed window may outlive the store's slots

  void add_number(Slot& slot, double value, double weight);
  void add_device(Accumulator& to, DeviceScalars& scalars, const Tensor& value, double weight, Reduce reduce);
  void remember(const Tensor& value, Accumulator& to);
  /// The initial value of the device's part.
  static double move_to_device(Accumulator& a, Reduce reduce);
  Slot& slot(std::string_view name, LogScope scope, RunningStage stage, const LogOptions& options);
  DeviceScalars& scalars(RunningStage stage, bool epoch) { return device_scalars_[{stage, epoch}]; }
  static bool finite(const Accumulator& a, const DeviceScalars::Reading& reading);
  /// Adds a value, already weighted for a mean, to the reduction of earlier ones.
  static void accumulate(double& to, double value, Reduce reduce);
  static void add(Accumulator& to, double value, double weight, Reduce reduce);
  /// Adds the device's part to `a.value`; `value` is what `a.device` held.
  static void fold(Accumulator& a, Reduce reduce, double value);
  static void fold(Accumulator& a, Reduce reduce, const DeviceScalars::Reading& reading);
  static void combine(Accumulator& to, const Accumulator& from, Reduce reduce);
  static double start_value(Reduce reduce);
  static void restart(Accumulator& a, Reduce reduce);
  static double finish(const Accumulator& a, Reduce reduce);
  Window close(RunningStage stage, bool epoch);
  struct Plan;
  /// The numbers that this rank exchanges for a window whose values are `own`.
  Plan plan_of(const std::vector<Running>& own, RunningStage stage, bool epoch) const;
  /// Creates slots for the metrics of all ranks. `plan` is this rank's text.
  void learn(const std::string& plan, RunningStage stage, Collectives& collectives);
  /// Replaces the values of the window by those of all ranks. The data that a rank sends does not depend on the number
  /// of ranks, unless one of them has logged a metric that another does not know yet.
  void merge(Window& window, Collectives& collectives);
  void publish(const std::string& name, double value, RunningStage stage);
  /// The slot whose last step value has this name; null if no slot has one.
  const Slot* latest_of(std::string_view final_name, RunningStage stage) const;
  /// `slot.latest`, begun again for the current batch, and how a value is added to it.
  std::pair<Accumulator&, Reduce> latest_in_batch(Slot& slot) const;
  static Reduce latest_reduce(const Slot& slot) {
    return slot.latest.of_one_call ? Reduce::last : slot.options.reduce_fx;
  }
  double latest_value(const Slot& slot);
  std::optional<double> running(std::string_view final_name, RunningStage stage);
  /// The current windows of `stage`; waits for the device.
  void read_running(RunningStage stage);

  int64_t batch_ = 0, discards_ = 0;
  bool records_ = false;  // steps of this run are recorded
  std::optional<at::Device> recording_on_;
  std::vector<Addition> recorded_;
  std::optional<at::Device> noting_on_;
  HostNumbers noted_;
  std::vector<std::shared_ptr<Slot>> slots_;    // in order of first use
  std::unordered_map<Key, Slot*, Hash> index_;  // keys point into the slots' names
  Taken taken_;
  std::set<std::string, std::less<>> monitored_;
  std::map<std::pair<RunningStage, bool>, DeviceScalars> device_scalars_;  // by stage; of epochs
  std::vector<LoggedInBatch> logged_in_batch_;
  Accumulator watch_;  // becomes NaN or infinite once a watched value is
  // A pending read of the progress bar.
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
  /// Whether all watched values are finite. Waits for them.
  bool finite() const;

 private:
  friend class LogStore;
  RunningStage stage_{};
  bool epoch_ = false;
  std::vector<Running> values_;  // as of when the window was closed
  std::optional<Accumulator> watch_;
  DeviceScalars::Reading reading_;
};

inline LogStore::Window LogStore::close_step_window(RunningStage stage) { return close(stage, /*epoch=*/false); }
inline LogStore::Window LogStore::close_epoch(RunningStage stage) { return close(stage, /*epoch=*/true); }

struct LogStore::Mark {
  struct Values {
    Accumulator step, epoch;
    Slot::Latest latest;
  };
  std::map<const Slot*, Values> slots;
  DeviceScalars::Values steps, epochs;
  Accumulator watch;
};

struct LogStore::Addition {
  Accumulator* to;
  double weight;
  Reduce reduce;
  std::optional<double> number = {};  // for host values; nullopt if the device accumulates
  Tensor value = {};                  // on the CPU: each launch writes it, and the host adds it
  bool watched = false;
  bool is_of_host() const { return number || value.defined(); }
};

}  // namespace fulgur::detail
