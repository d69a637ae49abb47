#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/outputs.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// Peak memory of a rank during a fit.
struct FULGUR_API PeakMemory {
  int64_t rank = 0;
  /// For `cpu` it is the resident set size of the process; for `cuda:0` it is the number of bytes held by tensors,
  /// according to the caching allocator.
  std::string device;
  int64_t bytes = 0;
};

/// Result of a fit. For a fit that threw, see `Trainer::last_fit()`, which reports how far it came.
struct FULGUR_API FitReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;         ///< rank of this process; everything else in a report is the same on all ranks
  std::string stop_reason;  ///< such as `max_epochs`, `max_steps`, a callback's reason, `signal 15`, `exception`
  int64_t epochs = 0;       ///< number of completed epochs
  int64_t global_step = 0;
  double train_seconds = 0;  ///< seconds inside the loops, including evaluation
  Metrics metrics;           ///< last values by name
  /// Peaks in rank order: for each rank that of the CPU and then those of its devices, if any. If the kernel does not
  /// let a process reset its peak, the CPU's peak is that of the whole process.
  std::vector<PeakMemory> peak_memory;
  /// Number of training batches in this process whose steps were launched as CUDA graphs, or replayed on the CPU.
  int64_t captured_batches = 0;
  /// Why the batches, or those after some batch, were not captured although `capture` is true. Nullopt if
  /// all batches after the warm-up were, or if `capture` is false.
  std::optional<std::string> not_captured;
  /// The same of validation batches, which are captured on the CPU.
  int64_t captured_validation_batches = 0;
  std::optional<std::string> validation_not_captured;
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> last_checkpoint, best_checkpoint;
  /// For each logger that could not send everything, such as to a server that was away, what is lost. Empty in the
  /// report of a fit that threw.
  std::vector<std::string> logger_losses;

  /// The value of one of `metrics`. Throws an Error that lists the available names if there is none with this name.
  double metric(std::string_view name) const;
};

/// Metrics of one evaluation, exact over all samples: one list per loader.
struct FULGUR_API EvalReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;  ///< rank of this process; everything else in a report is the same on all ranks
  std::vector<Metrics> loaders;
  int64_t samples = 0;
  double seconds = 0;
  /// Number of batches in this process whose steps were replayed, and why others were not, as in a FitReport.
  int64_t captured_batches = 0;
  std::optional<std::string> not_captured;
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> checkpoint;

  /// The value of a metric of any loader, by its full name: `test_loss`, or `test_loss/dataloader_idx_1` if there are
  /// several loaders. Throws an Error that lists the available names if there is none with this name.
  double metric(std::string_view name) const;
};

/// Result of a prediction. With several ranks each process has its own share of the outputs, as in Lightning; those of
/// all ranks are in the files.
struct FULGUR_API PredictReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;  ///< rank of this process
  /// Named outputs of the samples that this process read, in reading order, with one Outputs per loader.
  std::vector<Outputs> loaders;
  /// `predictions.safetensors` and `predictions.jsonl`, on rank 0: all samples of all ranks.
  std::vector<std::filesystem::path> files;
  int64_t samples = 0;  ///< number of samples of all ranks
  /// Number of batches in this process whose steps were replayed, and why others were not, as in a FitReport.
  int64_t captured_batches = 0;
  std::optional<std::string> not_captured;
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> checkpoint;
};

/// `peak memory: cpu 812 MiB resident · cuda:0 9.3 GiB`: all devices of one process; with several ranks the maximum of
/// each kind, with its rank.
FULGUR_API std::string peak_memory_text(const std::vector<PeakMemory>& peaks);

/// The metrics as a box-drawing table for stdout, with columns such as `Validate metric | DataLoader 0`.
FULGUR_API std::string metrics_table(const std::string& title, const std::vector<Metrics>& columns);

}  // namespace fulgur
