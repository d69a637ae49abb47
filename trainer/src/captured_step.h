#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/graph_capture.h"
#include "fulgur/core/recordable_step.h"
#include "run.h"

namespace fulgur::detail {

/// Why the steps of this run cannot be captured, for people; nothing where they can; the optimizer then keeps its
/// rates on the device. Behind `start_training`.
std::optional<std::string> cannot_capture(const Run& run);

/// `cuda_graph: true`: after a few steps as they are, the device's work of a step (forward, backward, clipping,
/// optimizer, adding to logged values) is recorded and launched as one from then on. Batches of another shape are
/// stepped as they are. Where a recording is out of date, it begins again with a few steps as they are.
class CapturedStep {
 public:
  /// `body` is the device's part of a step of automatic optimization: all of it, up to gradients of none.
  using Body = std::function<StepOutput(const Batch&, int64_t batch_idx)>;
  CapturedStep(Run& run, std::unique_ptr<GraphCapture> graph, Body body);
  ~CapturedStep();

  /// The step's output where the device was given the recorded step; nothing where the step is to be made as it is.
  std::optional<StepOutput> step(const Batch& batch, int64_t batch_idx);
  /// For a step that is made as it is, until the returned object goes: one before a recording runs on the stream that
  /// will record.
  std::shared_ptr<void> warm_up();

 private:
  bool same_kind(const Batch& batch) const;
  void remember_modes();
  /// Whether parameters were frozen or freed, layers put into another mode, or the optimizer's tensors replaced since
  /// the recording.
  bool out_of_date() const;
  bool record(const Batch& batch, int64_t batch_idx);
  /// The host's part of a step whose recording was broken off.
  void undo_step();
  void start_over();
  void give_up(const std::string& reason);

  Run& run_;
  RecordableStep* optimizer_;
  std::unique_ptr<GraphCapture> graph_;
  Body body_;
  Batch inputs_;       // that the recorded step reads
  StepOutput output_;  // that it writes
  std::vector<LogStore::Addition> additions_;
  // What a recording depends on beside the batch: which parameters learn, which layers are in training mode, the
  // optimizer's tensors.
  std::vector<std::pair<Tensor, bool>> learning_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;
  int64_t layout_ = 0;
  std::string stopped_at_;  // the operation that a recording stopped at
  int64_t warm_ups_ = 0, replays_ = 0, records_ = 0;
  bool recorded_ = false, given_up_ = false;
};

}  // namespace fulgur::detail
