#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/core/state/tensor_part.h"

namespace fulgur {

/// float32 copies of which each rank has a part, which a strategy keeps in place of whole ones, and to which it gives
/// gradients. All ranks must call each function.
class FULGUR_API DividedMasterWeights {
 public:
  virtual ~DividedMasterWeights();
  /// See `MasterWeights`.
  virtual void write_back(Optimizer& optimizer) = 0;
  /// Of this rank.
  virtual int64_t bytes() const = 0;
  /// Whole copies by parameter name on rank 0; an empty state on the others.
  virtual StateTree state() const = 0;
  /// A tensor on `meta` for each whole copy, by parameter name. Appends what this rank writes of them.
  virtual StateTree state_in_parts(std::vector<TensorPart>& parts) const = 0;
  /// Takes this rank's parts of whole copies.
  virtual void load_state(const StateTree& state) = 0;
};

/// float32 copies of half-precision parameters, which optimizers step in their place, since an update smaller than
/// 1/256 of a bfloat16 weight would be lost in it. A parameter changed by anything but its optimizer is overwritten at
/// the next step.
class FULGUR_API MasterWeights : public Stateful {
 public:
  /// From now on the optimizer steps copies; parameters in wider formats are stepped directly.
  void adopt(Optimizer& optimizer);
  /// Copies the gradients of the module's parameters to the copies, in float32. Call it once per optimizer until
  /// `end_step`.
  void take_gradients(Optimizer& optimizer);
  void end_step() { taken_.clear(); }
  /// Writes the values of the copies to the module's parameters.
  void write_back(Optimizer& optimizer);
  int64_t bytes() const;

  /// The whole copies that an optimizer steps, by the parameters' addresses; it steps the module's parameters
  /// afterwards, without any state.
  std::unordered_map<const void*, Tensor> hand_over(Optimizer& optimizer);
  /// From now on `divided` does what this class did for the optimizers whose copies it handed over.
  void follow(const std::weak_ptr<DividedMasterWeights>& divided) { divided_ = divided; }

  /// Contains the copies by parameter name.
  StateTree state() const override;
  /// See `Precision::state_in_parts`.
  StateTree state_in_parts(std::vector<TensorPart>& parts) const;
  /// Throws a CheckpointError for a different shape. Copies that are missing in the state keep the values of the
  /// module's weights.
  void load_state(const StateTree& state) override;

 private:
  // An optimizer's parameters that are copies, and the module's parameters that they replace.
  struct Lists {
    std::vector<Tensor> copies, of_module;
  };
  const Lists& lists_of(const Optimizer& optimizer);
  std::map<std::string, Tensor> copies_;
  std::unordered_map<const Optimizer*, Lists> lists_;
  std::unordered_set<const Optimizer*> taken_;
  std::weak_ptr<DividedMasterWeights> divided_;
};

}  // namespace fulgur
