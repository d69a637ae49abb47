#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace fulgur {

/// Writes a checkpoint when a fit ends with an exception or a signal after its first batch. With `dirpath` the next fit
/// without ckpt_path resumes from it, and the first fit that ends normally removes it. If the name is taken, the new
/// checkpoint gets `-v1`. The next fit uses the newest one, and earlier ones are released. Deviation from Lightning:
/// `dirpath` may be omitted, and resuming needs no ckpt_path.
class FULGUR_API OnExceptionCheckpoint final : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<std::filesystem::path> dirpath = {};
    std::string filename = "on_exception";
    void fields(Fields& f);
  };

  /// Throws a ConfigError if `filename` is not a file name.
  explicit OnExceptionCheckpoint(Options options);

  Phase phase() const override { return Phase::checkpoint; }
  std::optional<std::filesystem::path> resume_candidate() const override;
  void setup(RunContext& run, TrainerFn fn) override;
  void on_train_start(RunContext& run) override;
  void on_exception(RunContext& run, const std::exception& error) override;
  void on_checkpoint_published(RunContext& run, const CheckpointInfo& info) override;
  void on_fit_end(RunContext& run) override;

 private:
  /// Checkpoints with this name in `dirpath`, newest first.
  std::vector<std::filesystem::path> written() const;
  void remove(RunContext& run, const std::filesystem::path& path) const;

  Options options_;
  std::optional<int64_t> batches_at_start_;  // once training has begun
};

}  // namespace fulgur
