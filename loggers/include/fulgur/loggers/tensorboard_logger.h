#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/logger.h"
#include "fulgur/loggers/logger_options.h"

namespace fulgur {

/// Writes metrics and hyper-parameters for TensorBoard into an event file `events.out.tfevents.TIME.HOST.PID.N` in the
/// run folder, a new one for each `start`. Values are stored as float, as TensorBoard does; names that are not UTF-8
/// are repaired.
///
/// Hyper-parameters go to the HParams table under names like `optimizer/lr`: numbers, booleans and strings with their
/// types, and lists, null and non-finite numbers as text. The end of the run sets the status: success, or failure. An
/// interrupted run leaves the status unknown, since TensorBoard keeps the first one that it reads, and the run may
/// continue.
///
/// A picture is stored as PNG, a histogram with the buckets of torch.utils.tensorboard, a text under
/// `NAME/text_summary` and a table, as Markdown, under `NAME/table`. A scalar, a picture and a histogram need different
/// names: TensorBoard shows only the kind that it reads first. Non-finite values of a histogram are left out, with a
/// warning. Artifacts are not kept, since TensorBoard has no place for them.
///
/// A resumed run truncates the event file of its checkpoint to its length at that time, and removes later ones. Without
/// a logger state in the checkpoint, or if that file has changed, the files stay as they are. Either way, the new file
/// makes a TensorBoard that has already read later steps drop them. Its fast loader ignores that and keeps a later step
/// until the same name is logged again at that step or before.
///
/// If the file cannot be written, one warning (`logger.tensorboard_write`) reports it and the run continues; up to 16
/// MiB of events wait for the next flush.
class FULGUR_API TensorBoardLogger : public Logger {
 public:
  struct Options : LoggerOptions {
    bool default_hp_metric = true;
    std::string prefix;
    std::optional<std::string> sub_dir;
    double flush_every_s = 10;
    void fields(Fields& f);
  };
  /// Throws a ConfigError if `name` is not a plain folder name, or `sub_dir` not a folder below the run folder.
  explicit TensorBoardLogger(const Options& options);
  TensorBoardLogger();
  ~TensorBoardLogger() override;

  std::optional<std::string> run_name() const override;
  std::optional<int64_t> run_version() const override;
  StateTree state() override;
  void load_state(const StateTree& state) override;
  /// Throws a ConfigError if `sub_dir` passes through a link.
  void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) override;
  void log_hyperparams(const ConfigNode& hparams) override;
  void log_metrics(const Metrics& metrics, int64_t step) override;
  void log_media(const MediaRecord& record, int64_t step) override;
  void after_save_checkpoint(const CheckpointInfo& info) override;
  void flush() override;
  void finalize(RunStatus status) noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
