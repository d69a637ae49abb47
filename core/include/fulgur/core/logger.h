#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "fulgur/core/log_options.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/run_context.h"
#include "fulgur/core/state_tree.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

enum class RunStatus { success, failed, interrupted };

struct ImageRecord {
  std::string name;
  Tensor pixels; /* (C, H, W) uint8 */
};
struct HistogramRecord {
  std::string name;
  Tensor values;
};
struct TextRecord {
  std::string name;
  std::string text;
};
using MediaRecord = std::variant<ImageRecord, HistogramRecord, TextRecord>;

/// Where metrics go. Lives on rank 0 only; called on the thread of the run.
class FULGUR_API Logger {
 public:
  static constexpr const char* kRegistryKind = "logger";

  virtual ~Logger();
  /// Folder name and version that this logger wants for the run; the first logger's choice counts.
  virtual std::optional<std::string> run_name() const { return std::nullopt; }
  virtual std::optional<int64_t> run_version() const { return std::nullopt; }
  /// Which state in a checkpoint is this logger's; the name of its class. Of several with one key, states go by their
  /// order.
  virtual std::string state_key() const;
  /// How much it has written, for a checkpoint: all that was logged is in its files when this returns. Null where it
  /// cannot say, or where its files cannot be written now.
  virtual StateTree state();
  /// Before the `start` of a run that resumes, the state in its checkpoint: `start` cuts the files exactly there. It is
  /// not called where the checkpoint has no state of this logger.
  virtual void load_state(const StateTree& state);
  /// Opens its files under the run folder. `resume_step`: the run resumes from that step; without a state, rows after
  /// it belong to a cut-off past and are removed.
  virtual void start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) = 0;
  virtual void log_hyperparams(const ConfigNode& hparams);
  /// One row: values of global step `step`, `epoch` among them.
  virtual void log_metrics(const Metrics& metrics, int64_t step) = 0;
  virtual void log_media(const MediaRecord& record, int64_t step);
  virtual void log_artifact(const std::filesystem::path& path);
  virtual void after_save_checkpoint(const CheckpointInfo& info);
  /// Everything logged is in the files when this returns.
  virtual void flush() {}
  /// The end of the run, whatever its end; never throws.
  virtual void finalize(RunStatus status) noexcept = 0;
};

}  // namespace fulgur
