#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/export.h"
#include "fulgur/core/options/fields.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// A value that needs sums over many batches: accuracy, F1, AUROC, ….
///
/// A class derived from it declares its sums with `add_state` and `add_list`, adds a batch to them in `update`, whose
/// arguments it chooses, and returns the value of all batches in `compute`. Its state is then saved and resumed, merged
/// over ranks, and moved to the device of the values that it gets. `update` must not wait for the device. One thread at
/// a time.
///
///     log("val_f1", f1_);  // in validation_step, after f1_.update(logits, target)
class FULGUR_API Metric : public Stateful {
 public:
  Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;
  ~Metric() override;

  /// The value of everything since the last reset, on the device of the state: a scalar, a vector with one value per
  /// name of `value_names`, or a matrix, which is logged as a picture and a table. NaN if it is undefined.
  virtual Tensor compute() const = 0;
  /// For each value of a vector, what is appended to the name of the logged value: `_0`, `_1`, … unless overridden.
  virtual std::vector<std::string> value_names(int64_t count) const;
  /// Of a matrix: what its rows and columns are, for the first cell of its table, such as `rows: label, columns:
  /// prediction`.
  virtual std::string matrix_axes() const { return {}; }
  /// Forgets all batches.
  virtual void reset();
  /// Number of updates since the last reset, those of merged states included.
  int64_t updates() const { return updates_; }
  /// Whether its state grows with the number of samples.
  bool keeps_lists() const { return !lists_.empty(); }

  /// The tensors of lists are joined along their first dimension.
  StateTree state() const override;
  /// Throws a CheckpointError, before it changes anything, if the state belongs to a metric with other states or
  /// shapes.
  void load_state(const StateTree& state) override;
  /// Adds the state of the same metric of another rank or device. Throws like `load_state`.
  virtual void merge_state(const StateTree& other);

 protected:
  /// How the states of two ranks become one.
  enum class Merge { sum, min, max };
  /// Declares a tensor that has this value after each reset. Call in the constructor; the reference stays valid.
  Tensor& add_state(std::string name, Tensor initial, Merge merge = Merge::sum);
  /// Declares a list of tensors of any length, empty after each reset; they are joined along their first dimension.
  std::vector<Tensor>& add_list(std::string name);
  /// Call first in each update: counts it, and moves the state to the device of `input`.
  void begin_update(const Tensor& input);
  /// The same for an update without tensors: the state stays where it is.
  void begin_update() { ++updates_; }
  /// Throws a CheckpointError if `other` is no state of a metric with the same tensors and lists.
  void check_state(const StateTree& other) const;
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  friend struct detail::ComponentAccess;
  struct State {
    std::string name;
    Tensor value, initial;
    Merge merge;
  };
  struct List {
    std::string name;
    std::vector<Tensor> values;
  };
  // Deques, since references to their elements stay valid.
  std::deque<State> states_;
  std::deque<List> lists_;
  int64_t updates_ = 0;
};

/// Options that a config may set for any metric, beside `class_path`.
struct FULGUR_API MetricOptions {
  std::optional<std::string> name;  ///< under which it is logged, after `val_`
  void fields(Fields& f);
};

/// A metric that compares predictions with targets.
class FULGUR_API PredictionMetric : public Metric {
 public:
  static constexpr const char* kRegistryKind = "metric";
  using CommonOptions = MetricOptions;

  /// Throws a ConfigError for an empty name.
  void set_common_options(const MetricOptions& options);
  /// The name that the config gives to this metric; nullopt if it gives none.
  const std::optional<std::string>& given_name() const { return common_options_.name; }
  /// Adds a batch; the class says which shapes and dtypes it takes. Throws an Error for any other.
  virtual void update(const Tensor& prediction, const Tensor& target) = 0;

 private:
  MetricOptions common_options_;
};

}  // namespace fulgur
