#pragma once

#include <exception>

#include "fulgur/core/config_node.h"
#include "fulgur/core/hooks.h"
#include "fulgur/core/loader.h"
#include "fulgur/core/options.h"
#include "fulgur/core/stage.h"

namespace fulgur {

class LightningModule;

/// The data of a run: how it is prepared, split and loaded.
class FULGUR_API DataModule : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "data";

  /// Downloads, checks or prepares files; called on one process per node, before `setup`. Must not set members.
  virtual void prepare_data() {}
  /// True: `prepare_data` runs once per node (node-local disks); false: once in total (shared file systems).
  virtual bool prepare_data_per_node() const { return true; }
  /// Reads what `fn` needs; called on every process. Called again for another one.
  virtual void setup(TrainerFn fn);
  /// Loaders of each stage; empty if there are none. Validation, test and predict may have several.
  virtual Loaders train_dataloader() { return {}; }
  virtual Loaders val_dataloader() { return {}; }
  virtual Loaders test_dataloader() { return {}; }
  virtual Loaders predict_dataloader() { return {}; }
  /// What the Trainer calls; the default calls those above. Overridden by modules whose stages are alike.
  virtual Loaders loaders(RunningStage stage);
  /// The transfer hooks of a batch; the defaults call the module's. Run on the thread of the run.
  virtual Batch on_before_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx);
  virtual Batch transfer_batch_to_device(LightningModule& module, Batch batch, const at::Device& device,
                                         int64_t loader_idx);
  virtual Batch on_after_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx);
  virtual void teardown(TrainerFn fn);
  /// After an exception in the run, before teardown.
  virtual void on_exception(const std::exception& error);
  /// Facts that the config's `link` can pass to other components after `setup`: `num_classes`, `num_features`, ….
  virtual StateTree exported_values() const { return {}; }

  /// Which transfer hooks the class overrides; all, unless created by a factory.
  const HookMask& overridden() const { return overridden_; }
  void set_overridden(const HookMask& mask) { overridden_ = mask; }
  /// Called by `make_component`.
  template <class T>
  static void on_component_made(T& made, const ConfigNode& /*options*/) {
    made.set_overridden(hooks_of<T>());
  }
  template <class T>
  static HookMask hooks_of() {
    HookMask mask;
    mask.set(Hook::on_before_batch_transfer, FULGUR_OVERRIDES(T, DataModule, on_before_batch_transfer));
    mask.set(Hook::transfer_batch_to_device, FULGUR_OVERRIDES(T, DataModule, transfer_batch_to_device));
    mask.set(Hook::on_after_batch_transfer, FULGUR_OVERRIDES(T, DataModule, on_after_batch_transfer));
    mask.exact = true;
    return mask;
  }

  /// What the evaluation of a checkpoint needs to know about its training data (mean and standard deviation, …).
  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}

 private:
  HookMask overridden_;
};

}  // namespace fulgur
