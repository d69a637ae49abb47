#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// When predictions are written.
enum class WriteInterval { batch, epoch, batch_and_epoch };
constexpr auto enum_names(WriteInterval) {
  return std::to_array<EnumName<WriteInterval>>({{WriteInterval::batch, "batch"},
                                                 {WriteInterval::epoch, "epoch"},
                                                 {WriteInterval::batch_and_epoch, "batch_and_epoch"}});
}

/// Writes the predictions of `predict`, each rank those of its samples: one safetensors file per batch, or one per
/// loader at the end. Each file has the outputs and `sample_index`, by which the order of the samples can be restored.
/// The Trainer then keeps no predictions. With `fast_dev_run` or `barebones`, outputs are checked, but nothing is
/// written. As with Lightning's BasePredictionWriter, a derived class may override
/// `write_on_batch_end` and `write_on_epoch_end`.
class FULGUR_API PredictionWriter : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<std::filesystem::path> output_dir = {};
    WriteInterval write_interval = WriteInterval::batch;
    void fields(Fields& f);
  };

  /// What a batch has predicted.
  struct Predicted {
    Outputs outputs;
    Tensor sample_indices;  ///< int64 on the CPU; see `RunContext::sample_indices`
  };

  explicit PredictionWriter(Options options);
  ~PredictionWriter() override;

  bool writes_predictions() const override { return true; }

  /// Called after each batch if `write_interval` is `batch` or `batch_and_epoch`. Writes
  /// `predictions-rankR-loaderL-batchB.safetensors` with numbers of 2, 2 and 8 digits. Throws an Error for an output
  /// that does not have one row per sample, and a CheckpointError if the file cannot be written.
  virtual void write_on_batch_end(RunContext& run, const Predicted& predicted, const Batch& batch, int64_t batch_idx,
                                  int64_t loader_idx);
  /// Called at the end with the batches of each loader, on the CPU, if `write_interval` is `epoch` or
  /// `batch_and_epoch`. Writes `predictions-rankR-loaderL.safetensors` for each loader of which this rank has samples.
  virtual void write_on_epoch_end(RunContext& run, const std::vector<std::vector<Predicted>>& loaders);

  /// Throws a ConfigError on all ranks if `output_dir` already has predictions.
  void setup(RunContext& run, TrainerFn fn) override;
  /// Creates the folder. Throws a ConfigError on all ranks if it already has predictions, or cannot be created.
  void on_predict_start(RunContext& run) override;
  void on_predict_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                            int64_t loader_idx) override;
  void on_predict_epoch_end(RunContext& run) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  bool saves_on_exception() const override { return false; }

 protected:
  /// The folder of the files; known from `on_predict_start` on.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  /// Writes the batches, one after the other, as one file that appears when it is complete.
  void write(RunContext& run, const std::string& suffix, const std::vector<const Predicted*>& batches,
             int64_t loader_idx);

  Options options_;
  std::filesystem::path folder_;
  std::vector<std::vector<Predicted>> kept_;  // by loader
  bool is_trial_ = false;
  int64_t files_ = 0, rows_of_loader_ = 0;
};

}  // namespace fulgur
