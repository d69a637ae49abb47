#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distributed/gradient_averages.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/strategies/stage_plan.h"
#include "pipeline/stage_links.h"
#include "tensor/tensor_calls.h"

namespace fulgur::detail {

/// Executes the actions of a rank: forwards and backwards of micro-batches in its stages. Gradients are accumulated in
/// the parameters.
class PipelineExecutor {
 public:
  /// The plan must outlive this.
  PipelineExecutor(LayerChain chain, const StagePlan& plan, PipelineSchedule schedule, PipelineShape shape,
                   MeshGroups& mesh, at::Device device);
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  /// From now on `calls` computes forwards; it must outlive this.
  void divide_layers(TensorCalls& calls) { calls_ = &calls; }
  /// Forward and backward of a batch in micro-batches, of which a batch with too few samples has fewer. Returns its
  /// loss, the mean of theirs weighted by samples, on all ranks. The last backward of each stage counts for `averages`;
  /// nullptr: none does. Does not wait for a device.
  Tensor run(const Batch& batch, const StepServices& services, GradientAverages* averages);

 private:
  using Values = LayerChain::Values;
  /// A micro-batch of the batch.
  struct Part {
    Batch batch;
    double share = 1;
    std::string key;  ///< of its shapes
  };
  /// What a stage keeps of a micro-batch until its backward.
  struct Kept {
    Values inputs;     ///< leaves
    Values outputs;    ///< the scaled loss, in the last stage
    Values gradients;  ///< of the outputs that have one; from `backward_input` until `backward_weights`
  };
  std::vector<Part> split(const Batch& batch, int64_t parts) const;
  /// `received_gradients`: of those that this rank has sent, which the rank before has when its outputs are here.
  void forward(const PipelineAction& action, const Part& part, const StepServices& services,
               int64_t received_gradients);
  /// Takes the gradients of the outputs from the stage after.
  void begin_backward(const PipelineAction& action, Kept& kept);
  /// Gives the gradients of the inputs to the stage before.
  void pass_on(const PipelineAction& action, const Values& inputs, Values gradients);
  void backward(const PipelineAction& action, Kept kept);
  void backward_input(const PipelineAction& action, Kept& kept);
  void backward_weights(const PipelineAction& action, const Kept& kept);
  std::vector<int64_t> versions_of_unnamed_buffers() const;
  /// Throws an Error that names a buffer which no layer names and which a layer of this rank has changed.
  void check_unnamed_buffers(const std::vector<int64_t>& before) const;
  bool is_last(int64_t stage) const { return stage + 1 == shape_.stages(); }

  LayerChain chain_;
  const StagePlan& plan_;
  PipelineSchedule schedule_;
  PipelineShape shape_;
  MeshGroups& mesh_;
  TensorCalls* calls_ = nullptr;  ///< layers are not divided
  at::Device device_;
  StageLinks links_;
  /// Actions of this rank, and for each of them, which gradients have arrived.
  struct Plan {
    std::vector<PipelineAction> actions;
    std::vector<bool> ends_gradients;  ///< whether an action is the last one that changes gradients of its stage
    std::vector<int64_t> received_gradients;
  };
  std::map<int64_t, Plan> actions_;                   ///< by the number of micro-batches
  std::map<std::pair<int64_t, int64_t>, Kept> kept_;  ///< by stage and micro-batch
  Tensor loss_;                                       ///< so far, in the last stage
};

}  // namespace fulgur::detail
