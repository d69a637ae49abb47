#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/batch.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/log_options.h"
#include "fulgur/core/outputs.h"

namespace fulgur {

/// Most memory that a rank held during a fit.
struct FULGUR_API PeakMemory {
  int64_t rank = 0;
  /// `cpu`: the resident set of the process. `cuda:0`: what tensors held, by the caching allocator.
  std::string device;
  int64_t bytes = 0;
};

/// What a fit came to. That of a fit that threw is `Trainer::last_fit()`, and has what the fit had reached.
struct FULGUR_API FitReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;         ///< of this process; what a report says is the same on all
  std::string stop_reason;  ///< `max_epochs`, `max_steps`, a callback's reason, `signal 15`, `exception`
  int64_t epochs = 0;       ///< completed
  int64_t global_step = 0;
  double train_seconds = 0;  ///< inside the loops, evaluation included
  Metrics metrics;           ///< last values by name
  /// By ranks; of each the CPU and then its devices, where these are others. Where the kernel does not let a process
  /// set its peak back, that of the CPU is of the whole process.
  std::vector<PeakMemory> peak_memory;
  /// Batches that were launched as CUDA graphs, in this process.
  int64_t captured_batches = 0;
  /// `cuda_graph: true`: why the batches, or those from some batch on, were not launched as graphs. Nothing if all
  /// could be from the end of the warm-up on, or if `cuda_graph` is false.
  std::optional<std::string> not_captured;
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> last_checkpoint, best_checkpoint;

  /// The value of one of `metrics`. Throws an Error with the names that there are if it has none of this name.
  double metric(std::string_view name) const;
};

/// Metrics of one evaluation, exact over all samples: one list per loader.
struct FULGUR_API EvalReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;  ///< of this process; what a report says is the same on all
  std::vector<Metrics> loaders;
  int64_t samples = 0;
  double seconds = 0;
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> checkpoint;

  /// The value of a metric of any loader, by its whole name: `test_loss`, or `test_loss/dataloader_idx_1` if there are
  /// several loaders. Throws an Error with the names that there are if there is none of this name.
  double metric(std::string_view name) const;
};

/// What a prediction gave. With several ranks each process has its own share of the outputs, as in Lightning; those of
/// all ranks are in the files.
struct FULGUR_API PredictReport {
  ExitCode exit_code = ExitCode::ok;
  int64_t rank = 0;  ///< of this process
  /// Per loader: named outputs of the samples that this process read, in the order in which it read them.
  std::vector<Outputs> loaders;
  /// `predictions.safetensors` and `predictions.jsonl`, on rank 0: all samples of all ranks.
  std::vector<std::filesystem::path> files;
  int64_t samples = 0;  ///< of all ranks
  std::filesystem::path run_dir;
  std::optional<std::filesystem::path> checkpoint;
};

/// `peak memory: cpu 812 MiB resident · cuda:0 9.3 GiB`; all devices of one process; of several ranks the most of each
/// kind, with its rank.
FULGUR_API std::string peak_memory_text(const std::vector<PeakMemory>& peaks);

/// Box-drawing table for stdout: `Validate metric | DataLoader 0`.
FULGUR_API std::string metrics_table(const std::string& title, const std::vector<Metrics>& columns);

}  // namespace fulgur
