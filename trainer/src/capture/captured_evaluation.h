#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capture/watched_members.h"
#include "fulgur/capture/capture_guards.h"
#include "fulgur/core/device/graph_capture.h"
#include "fulgur/data/batch_kind.h"
#include "run/services.h"

namespace fulgur::detail {

/// `capture: true` in evaluations on the CPU: the steps of validation, test or predict. Each loader and each shape of
/// its batches has a recording, which later passes use again.
///
/// The first batch of each shape in a pass runs eagerly: it creates the slots of logged values, and modules often do
/// something else with it, such as logging pictures. The next one is recorded or, if there is a recording of an earlier
/// pass, compared with it; hooks between passes may have changed what steps read, and then it is recorded again. Within
/// a pass, recordings are compared like those of training. In passes 1, 10, 100, … the last batch is compared, too,
/// since a pass may be short. Loaders with fewer than `capture_min_eval_batches` batches run eagerly; if a loader does
/// not know its length, its last pass counts.
class CapturedEvaluation final : public EvaluationSteps {
 public:
  CapturedEvaluation(RunState& run, Services& services, RunningStage stage);
  ~CapturedEvaluation() override;

  void begin_pass() override;
  void end_pass() override;
  void begin_loader(std::optional<int64_t> limit, bool is_exact) override;
  std::optional<Outputs> step(const Batch& batch, std::optional<int64_t> left, const Body& body) override;

 private:
  struct Recording;
  struct Shape;
  struct Problem;
  Shape* shape_of(const Batch& batch);
  /// The step's outputs if it was executed, by a replay or while it was recorded.
  std::optional<Outputs> captured(Shape& shape, const Batch& batch, bool is_last, const Body& body);
  /// Whether this may be the last batch of its shape in a pass whose last batches are compared.
  bool ends_pass(const Shape& shape, std::optional<int64_t> left) const;
  /// Puts the batch where the recording reads it. False if that changes strides, on which kernels may depend.
  bool place(Shape& shape, const Batch& batch);
  /// Whether the recording is compared with this step.
  bool compares(const Recording& recording) const;
  /// Records the step. Returns why it could not be recorded, or how it differs from the recording before.
  std::optional<Problem> record(Recording& recording, const Body& body);
  /// What is to be done for a step that was not recorded: its outputs, if it was executed. Throws an Error if it
  /// differs from a recording that was launched more than once in this pass.
  std::optional<Outputs> leave(Shape& shape, const Problem& problem);
  /// The host's part of a step that was executed, and its outputs.
  Outputs finish(Recording& recording);
  void start_over();
  void give_up(const std::string& reason);

  RunState& run_;
  Services& services_;
  const RunningStage stage_;
  const char* const step_name_;
  std::unique_ptr<GraphCapture> graph_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::vector<int64_t> counts_;  // of batches, by loader, in its last pass
  bool is_short_ = false;        // the present loader has too few batches
  std::optional<std::string> short_text_;
  std::optional<CaptureGuards> guards_;  // since the first recording
  WatchedMembers members_;
  int64_t member_changes_ = 0;  // that call for comparisons
  int64_t discards_ = 0;        // of logged values, then
  int64_t pass_ = 0;
  bool given_up_ = false, reported_ = false, reported_shapes_ = false, reported_short_ = false;
};

/// The captured steps of an evaluation, if the run asks for them on the CPU; else nullptr. They say once why steps
/// cannot be captured.
EvaluationSteps* captured_evaluation(RunState& run, Services& services, RunningStage stage);

}  // namespace fulgur::detail
