#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/data/splits.h"

namespace fulgur {

/// What a column of a table is: a number; a text of a small set; a date with an optional time, which becomes its days
/// since 1970-01-01 (UTC); or nothing that a model gets.
enum class ColumnType { number, category, datetime, ignore };
constexpr auto enum_names(ColumnType) {
  return std::to_array<EnumName<ColumnType>>({{ColumnType::number, "number"},
                                              {ColumnType::category, "category"},
                                              {ColumnType::datetime, "datetime"},
                                              {ColumnType::ignore, "ignore"}});
}

/// CSV files with a header, for regression and classification. Batches have `numbers` (N, F) float32, `categories`
/// (N, C) int64 and `target`: (N) float32 for regression, (N, T) for T > 1 target columns, (N) int64 for
/// classification. Targets of regression are in the units of the file. If the files of predict lack the target columns,
/// its batches have no `target`. Batches of predict also have `index` (N) int64, the numbers of the rows in the files,
/// from 0 and without the header.
///
/// Means, standard deviations, medians and the values of categories are those of the training part. They are saved in
/// the checkpoint; if they are loaded from one, before or after `setup`, they are used instead. If they are loaded
/// before it, validate, test and predict read only the files of their stage, and `paths` only if it has no files.
/// Categories are numbered from 1 in the order of their texts; 0 is a value that the training part does not have. A
/// blank category is a value like any other. Classes are numbered from 0, in numeric order if all are numbers,
/// otherwise in the order of their texts.
///
/// With `stream`, files are read again in each epoch and only a buffer of rows is in memory. The order is a function of
/// the seed and the epoch, a resume continues at the next row, and N ranks read disjoint rows.
///
/// Exported values: `num_numbers`, `cardinalities` (list: 1 + the values of each category column), `num_outputs`
/// (classes, or target columns), `num_classes` (0 for regression), `task`, `classes` (texts), and `target_mean` and
/// `target_std` (lists; empty for classification; 0 and 1 without standardize_target), with which a model standardises
/// targets and converts its predictions back.
class FULGUR_API TableDataModule : public DataModule {
 public:
  enum class Task { regression, classification };
  friend constexpr auto enum_names(Task) {
    return std::to_array<EnumName<Task>>({{Task::regression, "regression"}, {Task::classification, "classification"}});
  }
  /// What a blank number becomes.
  enum class Blanks { mean, median, indicator, error };
  friend constexpr auto enum_names(Blanks) {
    return std::to_array<EnumName<Blanks>>({{Blanks::mean, "mean"},
                                            {Blanks::median, "median"},
                                            {Blanks::indicator, "indicator"},
                                            {Blanks::error, "error"}});
  }
  struct Options {
    std::vector<std::filesystem::path> paths = {};
    std::vector<std::filesystem::path> val_paths = {};
    std::vector<std::filesystem::path> test_paths = {};
    std::vector<std::filesystem::path> predict_paths = {};
    std::vector<std::string> target = {};
    Task task = Task::regression;
    std::map<std::string, ColumnType> types = {};
    std::string delimiter = ",";
    std::vector<std::string> blank_values = {"", "NA", "N/A", "NaN", "nan", "NULL", "null"};
    Blanks blank_numbers = Blanks::mean;
    bool standardize = true;
    bool standardize_target = true;
    SplitOptions split = {};
    Auto<bool> stratify = {};
    int64_t batch_size = 256;
    Auto<int64_t> eval_batch_size = {};
    bool drop_last = false;
    bool stream = false;
    int64_t shuffle_buffer = 65536;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit TableDataModule(const Options& options);
  ~TableDataModule() override;

  /// Reads the files. Throws a DataError that names file, line and column of what cannot be used.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports =
      "num_numbers, cardinalities, num_classes, num_outputs, task, classes, target_mean, target_std";
  StateTree exported_values() const override;
  StateTree state() const override;
  /// Throws a CheckpointError if the state has another task, other targets, or columns of other types than the options
  /// name, and after `setup` if the files of the run have other columns or numbers of rows.
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
