#pragma once

#include <cstdint>
#include <map>
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
#include "host_numbers.h"

namespace fulgur::detail {

/// Kind of the hook that logs: it decides the defaults of on_step and on_epoch and what is allowed.
enum class LogScope { forbidden, train_step, train_epoch, evaluation_step, evaluation_epoch };

/// Everything that was logged and not yet given to loggers and callbacks. One slot per (name, scope, stage). A value on
/// the CPU is added on the host into a double; a value on a device is added there and read when the slot is.
class LogStore {
 public:
  /// Adds a scalar. `weight` is the number of samples it stands for (counts in means only).
  void log(std::string_view name, LogScope scope, Stage stage, const Tensor& value, double weight,
           const LogOptions& options);
  void log(std::string_view name, LogScope scope, Stage stage, double value, double weight, const LogOptions& options);

  /// From here on numbers of the host are noted as they are logged; a tensor is none if the run is on the CPU itself.
  void start_watching(at::Device device);
  HostNumbers take_watched();

  /// One addition of a recorded step.
  struct Addition;
  /// From here on additions go to `device` alone; what the host counts is given by `take_recording`, for each time that
  /// the recorded step is launched. So are numbers of the host, as they are now; they are noted too.
  void start_recording(at::Device device);
  std::vector<Addition> take_recording();
  /// Before and after each launch.
  void before_replay(const std::vector<Addition>& additions);
  void after_replay(const std::vector<Addition>& additions);

  /// Makes the running step values of `stage` the same on all ranks, before they are taken: with sync_dist of all
  /// ranks, else rank 0's. All ranks must call it. Nothing in a world of one.
  void merge_step_values(Stage stage, Collectives& collectives) { merge(stage, false, collectives); }
  /// The same for epoch values, which are always of all ranks.
  void merge_epoch_values(Stage stage, Collectives& collectives) { merge(stage, true, collectives); }
  /// Step values of `stage` since the last call, as window means (or sums, minima, maxima); their windows start anew.
  /// Reads devices.
  Metrics take_step_values(Stage stage);
  /// Epoch values of `stage`; their epochs start anew. Reads devices.
  Metrics take_epoch_values(Stage stage);
  /// True where a step value waits.
  bool has_step_values(Stage stage) const;
  /// Forgets running epochs of `stage` (sanity check).
  void reset(Stage stage);

  /// Newest value: of a step metric the running window, else its last; of an epoch metric the last epoch's. Reads
  /// devices.
  std::optional<double> newest(std::string_view final_name);
  /// The last value that was taken.
  std::optional<double> written(std::string_view final_name) const;
  std::optional<Stage> stage_of(std::string_view final_name) const;
  std::vector<std::string> names() const;
  /// Newest values of what was logged with prog_bar. Reads devices.
  Metrics progress_values();
  /// Newest values of all.
  const std::vector<std::pair<std::string, double>>& published() const { return published_; }

  StateTree state();
  void load_state(const StateTree& state);
  /// Adds the running values of another rank.
  void add_running(LogStore& other);
  /// Windows and epochs start anew.
  void forget_running();

 private:
  struct Accumulator {
    double value = 0;  // sum of value · weight, plain sum, minimum or maximum
    double weight = 0;
    int64_t count = 0;
    Tensor device;  // the same, of values on a device; float64 scalar, so that sums over an epoch are exact
    bool device_used = false;
    double device_weight = 0;
  };
  struct Slot {
    std::string name;
    LogScope scope;
    Stage stage;
    LogOptions options;
    bool on_step = false, on_epoch = false;
    Accumulator step, epoch;
  };
  struct Key {
    std::string_view name;
    LogScope scope;
    Stage stage;
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

  void add_number(Slot& slot, double value, double weight);
  void add_device(Accumulator& to, const Tensor& value, double weight, Reduce reduce);
  Slot& slot(std::string_view name, LogScope scope, Stage stage, const LogOptions& options);
  static void add(Accumulator& to, double value, double weight, Reduce reduce);
  static void make_device(Accumulator& to, at::Device device, Reduce reduce);
  static void fold_device(Accumulator& a, Reduce reduce);
  /// Reads all of them by one copy from each device, so that the host waits once.
  static void fold_devices(const std::vector<std::pair<Accumulator*, Reduce>>& accumulators);
  static void fold(Accumulator& a, Reduce reduce, double value);
  void read_running(Stage stage, bool epoch);
  static void combine(Accumulator& to, const Accumulator& from, Reduce reduce);
  static void start_anew(Accumulator& a, Reduce reduce);
  void merge(Stage stage, bool epoch, Collectives& collectives);
  static double finish(Accumulator& a, Reduce reduce);
  void publish(const std::string& name, double value, Stage stage);

  std::optional<at::Device> recording_on_;
  std::vector<Addition> recorded_;
  std::optional<at::Device> watching_on_;
  HostNumbers watched_;
  std::vector<std::unique_ptr<Slot>> slots_;           // in the order of their first use
  std::unordered_map<Key, Slot*, Hash, Equal> index_;  // keys point into the slots' names
  std::vector<std::pair<std::string, double>> published_;
  std::map<std::string, Stage, std::less<>> stages_;
};

struct LogStore::Addition {
  Accumulator* to;
  double weight;
  Reduce reduce;
  std::optional<double> number = {};  // of the host; nothing if the device adds
};

}  // namespace fulgur::detail
