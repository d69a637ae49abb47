#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/data/splits.h"

namespace fulgur {

/// The arrays of one set of samples, samples in dimension 0. An array is `FILE.npy`, `FILE.npz:NAME` or
/// `FILE.safetensors:NAME`.
struct FULGUR_API ArraySet {
  std::string input = {};
  std::string target = {};                       ///< empty: none
  std::map<std::string, std::string> more = {};  ///< further entries of the batch, by name
  bool empty() const { return input.empty() && target.empty() && more.empty(); }
  void fields(Fields& f);
};

/// Arrays of NumPy and safetensors files. Batches have `input`, `target` (if there is one) and the entries of `more`.
/// .npy files are mapped into memory, so that they may be larger than it. Targets whose dtype is an integer become
/// int64 (labels, or masks batch by batch), bools of one dimension the labels 0 and 1, floating targets float32, and
/// inputs what `float_input` and `divide_by` say; `more` keeps its dtypes.
///
/// Sets that are omitted are taken from `train`: see SplitOptions. Predict uses `predict`, otherwise the test part, and
/// its batches also have `index` (N) int64, the numbers of the samples in their file, unless `more` has this entry.
///
/// Exported values: `num_features` (values of an input). With labels, integers or bools (N): `task` classification,
/// `num_classes` and `num_outputs` (largest label + 1). With floating targets (N), (N, T) or (N, horizon, T): `task`
/// regression, `num_outputs` (1 or T), and `horizon`. For inputs (N, window, columns) `num_inputs`, and for inputs
/// (N, C, H, W) `channels`, `height` and `width`.
class FULGUR_API ArrayDataModule : public DataModule {
 public:
  struct Options {
    ArraySet train = {};
    ArraySet val = {};
    ArraySet test = {};
    ArraySet predict = {};
    bool float_input = true;
    double divide_by = 1.0;
    bool memory_map = true;
    SplitOptions split = {};
    Auto<bool> stratify = {};
    int64_t batch_size = 64;
    Auto<int64_t> eval_batch_size = {};
    bool shuffle = true;
    bool drop_last = false;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other and for texts that name no array.
  explicit ArrayDataModule(const Options& options);
  ~ArrayDataModule() override;

  /// Opens the files. Throws a DataError that names the file for one that is damaged, and for arrays of different
  /// lengths.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports =
      "num_features; task, num_outputs by the targets; num_classes for labels; num_inputs, horizon for series; "
      "channels, height, width for inputs of four dimensions";
  StateTree exported_values() const override;
  std::string why_not_exported(std::string_view name) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
