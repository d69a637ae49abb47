#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"

namespace fulgur {

/// Series in the columns of a CSV file whose rows are in the order of time, for forecasts. A sample is a window of rows
/// and the rows of its horizon, which follow: batches have `input` (N, window, num_inputs) float32, standardised, and
/// `target` (N, horizon, num_outputs) float32 in the units of the file.
///
/// The file is split by time: a training part, then a validation part, then one for test and predict. A sample lies
/// wholly in one part, so that no part sees rows of another. With `predict_path`, predict reads all windows of another
/// file, whose batches have no `target`: the last window ends with the last row, and its forecast is of the rows that
/// the file does not have yet. Batches of predict also have `index` (N) int64, the number of the first row that is
/// forecast, from 0 and without the header. Means and standard deviations are those of the training
/// part; they are saved in the checkpoint, and those that are loaded from one are used instead.
///
/// Exported values: `num_inputs`, `num_outputs`, `window`, `horizon`, `target_mean`, `target_std`.
class FULGUR_API SeriesDataModule : public DataModule {
 public:
  struct Options {
    std::filesystem::path path = {};
    std::optional<std::filesystem::path> predict_path = {};
    std::vector<std::string> columns = {};
    std::vector<std::string> targets = {};
    std::string delimiter = ",";
    int64_t window = 24;
    int64_t horizon = 1;
    int64_t stride = 1;
    bool standardize = true;
    double val_fraction = 0.1;
    double test_fraction = 0.1;
    int64_t batch_size = 64;
    Auto<int64_t> eval_batch_size = {};
    bool shuffle = true;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit SeriesDataModule(const Options& options);
  ~SeriesDataModule() override;

  /// Reads the file; for predict only `predict_path`, if there is one and a checkpoint has the statistics. Throws a
  /// DataError that names file, line and column of a cell that is no number, and if a part is too short for a window
  /// and its horizon, or the file of predict for a window.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports = "num_inputs, num_outputs, window, horizon, target_mean, target_std";
  StateTree exported_values() const override;
  StateTree state() const override;
  /// Throws a CheckpointError for a state of other columns or targets.
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
