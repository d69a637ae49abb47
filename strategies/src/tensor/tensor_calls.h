#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "fulgur/core/export.h"
#include "operations/calls_above_autograd.h"
#include "tensor/divided_values.h"
#include "tensor/tensor_shards.h"
#include "tensor/width_rules.h"

namespace fulgur::detail {

struct DividedReads;  // call_arguments.h

/// Computes forwards of a module whose parameters the ranks divide. It sees the operations of a thread before autograd,
/// and computes those that read a divided parameter together with the other ranks: they exchange what a layer reads or
/// returns, and autograd the gradients. It follows the values of which a rank has a part, and lets them have random
/// numbers of their own. An operation that it cannot divide throws an Error that names it. A process has at most one.
class TensorCalls final : public CallsAboveAutograd {
 public:
  /// `shards` must outlive this. With parameters of norms, each rank has a part of the tokens of what layers divided by
  /// row and embeddings return, until a layer needs all. Throws an Error if the process has one already.
  TensorCalls(const TensorShards& shards, const std::vector<Tensor>& of_norms);
  ~TensorCalls();
  TensorCalls(const TensorCalls&) = delete;
  TensorCalls& operator=(const TensorCalls&) = delete;

  /// Sees the operations of the calling thread until `stop`, which the same thread calls; so do recomputes of
  /// activations of what is computed between.
  void start();
  static void stop() noexcept;
  /// Whether operations that read a divided parameter are computed together with the other ranks, as after `start`;
  /// otherwise they read this rank's part, and only what follows from divided values is known.
  void compute_layers(bool compute) { computes_layers_ = compute; }
  /// Whether the calling thread is in a forward.
  bool is_in_forward() const { return computes_layers_ && sees_calls(); }
  /// A value that leaves the forward, such as the loss, of all ranks. Throws an Error if each of them has a part that
  /// the others need. `what` is what errors call it.
  Tensor whole(const Tensor& value, std::string_view what) const;

  /// Computes an operation, whose arguments are on the stack.
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;

 private:
  DividedReads reads_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  /// Gives an operation whose arguments the ranks have parts of the tokens of those of the others; false: all of all.
  bool give_own_tokens(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                       const DividedValues::Value& value) const;
  bool gives_only_a_form(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  /// That of the arguments of which this rank has no part.
  std::unordered_set<const void*> memory_of_whole(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  /// A norm that the plan names reads a part of the tokens if all ranks have all.
  void divide_input_of_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void give_all_tokens(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  /// What of its results this rank has. Throws an Error for an operation that is not known to be right on the parts
  /// that it reads: its result could be another one than that of one process.
  WidthResult width_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                       const DividedValues::Value& value) const;
  [[noreturn]] void refuse_width(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                 const DividedValues::Value& value) const;
  /// What to say if an operation that is right on parts fails, as one with sizes of the whole does.
  std::string failure_on_parts(const c10::OperatorHandle& op, const DividedValues::Value& value,
                               const std::string& reason) const;
  /// Of the outputs of a layer, in one dimension.
  Division own_division(const DividedParameter& layer) const;
  /// What a layer returns whose outputs the ranks add.
  Tensor sum_of_outputs(const DividedParameter& layer, const Tensor& output);
  Tensor linear(const DividedParameter& layer, const Tensor& input, const Tensor& weight,
                const std::optional<Tensor>& bias);
  Tensor embedding(const DividedParameter& layer, const Tensor& weight, const Tensor& index, int64_t padding);
  void cross_entropy(const c10::OperatorHandle& op, torch::jit::Stack* stack, const DividedValues::Value& logits) const;
  /// Computes an operation that reads divided parameters; false: it is computed like others.
  bool call_layer(const c10::OperatorHandle& op, const DividedReads& read, torch::jit::Stack* stack);
  void give_sum_of_gradients(const c10::OperatorHandle& op, torch::jit::Stack* stack, const DividedReads& read) const;
  Tensor input_of_column(const DividedParameter& layer, const Tensor& input) const;
  Tensor input_of_row(const DividedParameter& layer, const Tensor& input) const;

  const TensorShards& shards_;
  MemoryPlaces norms_;  ///< of their parameters
  DividedValues values_;
  bool computes_layers_ = true;
};

/// Lets `calls`, unless it is null, see the operations of this thread during its lifetime.
class SeenCalls {
 public:
  explicit SeenCalls(TensorCalls* calls) : calls_(calls) {
    if (calls_) calls_->start();
  }
  ~SeenCalls() {
    if (calls_) TensorCalls::stop();
  }
  SeenCalls(const SeenCalls&) = delete;
  SeenCalls& operator=(const SeenCalls&) = delete;

 private:
  TensorCalls* calls_;
};

}  // namespace fulgur::detail
