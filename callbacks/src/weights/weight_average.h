#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// An average of the parameters of a module, and of its floating-point buffers if asked for, on the devices of the
/// parameters. Averages of half-precision tensors are float32. Nothing here waits for a device.
class WeightAverage {
 public:
  using Tensors = std::map<std::string, Tensor>;

  explicit WeightAverage(bool with_buffers) : with_buffers_(with_buffers) {}

  /// Forgets all values.
  void clear();
  bool empty() const { return parameters_.empty(); }
  const Tensors& parameters() const { return parameters_; }
  const Tensors& buffers() const { return buffers_; }

  /// Sets the average to the module's current values.
  void copy(const LightningModule& module);
  /// Moves the average by `weight` (0 to 1) towards the module's current values: average += weight (values - average).
  void move(const LightningModule& module, double weight);
  /// The same with a weight that only the device knows, a scalar there. If `copies` is defined and nonzero, a scalar
  /// too, the average becomes the values themselves, bit for bit.
  void move_by_device(const LightningModule& module, const Tensor& weight, const Tensor& copies = {});

  /// Sets the buffers with these names, which the average then uses as they are until it moves again.
  void set_recomputed(const LightningModule& module, const std::vector<std::string>& names);
  bool has_recomputed() const { return !recomputed_.empty(); }

  /// Puts the average into the module, until `leave` puts back the bits of all tensors that were replaced; with
  /// `and_keep_buffers` also those of all other buffers. If `unless` is defined and nonzero, a scalar on a device, the
  /// module keeps its values.
  void enter(LightningModule& module, bool and_keep_buffers = false, const Tensor& unless = {});
  void leave();
  bool entered() const { return entered_; }
  /// Puts the average into the module for good; `unless` as above.
  void put_into(LightningModule& module, const Tensor& unless = {});
  /// The averaged buffers, which may differ among ranks.
  std::vector<Tensor> shared_buffers() const;

  StateTree state() const;
  /// Throws a CheckpointError if the state does not fit the module; nullptr: not checked. All or nothing.
  void load_state(const StateTree& state, const LightningModule* module);

 private:
  /// Tensors of one device that are averaged together.
  struct Group {
    at::Device device;
    std::vector<Tensor> live, average;
  };
  /// Connects the values with the module's tensors, on their devices and in their memory formats.
  void bind(const LightningModule& module);
  void unbind();
  /// A weight on the host, or on the device if `of_device` is defined.
  struct Weight {
    double of_host = 0;
    Tensor of_device = {}, copies = {};
  };
  void move_by(const LightningModule& module, const Weight& weight);
  static void move_together(Group& group, const Weight& weight);
  void move_buffers(const Weight& weight);

  bool with_buffers_, entered_ = false;
  Tensors parameters_, buffers_, recomputed_;
  const LightningModule* bound_ = nullptr;
  std::vector<Group> groups_;
  std::vector<std::pair<Tensor, Tensor>> narrow_;        // half-precision parameters, with their averages
  std::vector<std::pair<Tensor, Tensor>> live_buffers_;  // with their averages
  std::vector<std::pair<Tensor, Tensor>> own_;           // the module's tensors, with their values before `enter`
};

}  // namespace fulgur::detail
