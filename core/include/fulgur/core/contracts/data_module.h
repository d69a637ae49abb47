#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/batch_transforms.h"
#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/contracts/hook_signatures.h"
#include "fulgur/core/contracts/hooks.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/outputs.h"
#include "fulgur/core/state/stage.h"

namespace fulgur {

class LightningModule;

/// Names and texts, for a line of predictions.jsonl.
using PredictionTexts = std::vector<std::pair<std::string, std::string>>;

/// A sample of `predict` as a line of predictions.jsonl shows it.
struct FULGUR_API PredictedRow {
  int64_t loader_idx = 0;
  /// Number of the line among those of its loader: the sample's place in the data, in its order, unless each rank reads
  /// all of it (`use_distributed_sampler: false`). An entry `index` of the batch is among `values`.
  int64_t row = 0;
  Outputs values;  ///< on the CPU, each without the dimension of the samples
};

/// The data of a run: how it is prepared, split and loaded.
class FULGUR_API DataModule : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "data";

  /// Downloads, checks or prepares files. Called on one process per node, before `setup`. Must not set members.
  virtual void prepare_data() {}
  /// If true, `prepare_data` runs once per node (node-local disks); if false, once in total (shared file systems).
  virtual bool prepare_data_per_node() const { return true; }
  /// Reads what `fn` needs. Called on every process, after the checkpoint's state is loaded, and again for another
  /// `fn`.
  virtual void setup(TrainerFn fn);
  /// Loaders of each stage; empty if there are none. Validation, test and predict may have several.
  virtual Loaders train_dataloader() { return {}; }
  virtual Loaders val_dataloader() { return {}; }
  virtual Loaders test_dataloader() { return {}; }
  virtual Loaders predict_dataloader() { return {}; }
  /// Called by the Trainer; the default calls the functions above. Override it if all stages are alike.
  virtual Loaders loaders(RunningStage stage);
  /// The transfer hooks of a batch; the defaults call the module's. Run on the thread of the run.
  virtual Batch on_before_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx);
  virtual Batch transfer_batch_to_device(LightningModule& module, Batch batch, const at::Device& device,
                                         int64_t loader_idx);
  virtual Batch on_after_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx);
  /// What completes the batches of `stage` on the device, after `setup`; null, the default, if the loader completes
  /// them. Called for each batch.
  virtual const BatchTransforms* batch_transforms(RunningStage stage) const;
  virtual void teardown(TrainerFn fn);
  /// Called after an exception in the run, before teardown.
  virtual void on_exception(const std::exception& error);
  /// Values that the config's `link` can pass to other components after `setup`: `num_classes`, `num_features`, ….
  /// A member `static constexpr const char* kExports` lists their names for `trainer describe`.
  virtual StateTree exported_values() const { return {}; }
  /// Why this data has no value `name`, and what to do, for the error of a link to it: a clause without a final full
  /// stop. Empty if there is no special reason. Called after `setup`.
  virtual std::string why_not_exported(std::string_view) const { return {}; }
  /// Further entries of a line of predictions.jsonl, which say in words what its numbers mean. Called
  /// on rank 0 after predict, for each sample. Must not throw.
  virtual PredictionTexts prediction_texts(const PredictedRow&) const { return {}; }

  /// Values from the training data that the evaluation of a checkpoint needs (mean and standard deviation, …).
  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}

 private:
  friend struct detail::ComponentAccess;
  template <class T>
  static HookMask hooks_of() {
#define FULGUR_CHECK(...) FULGUR_CHECK_HOOK(T, DataModule, __VA_ARGS__)
    FULGUR_DATA_SIGNATURES(FULGUR_CHECK)
#undef FULGUR_CHECK
    HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, FULGUR_OVERRIDES(T, DataModule, hook));
    FULGUR_TRANSFER_HOOKS(FULGUR_LOOK)
#undef FULGUR_LOOK
    mask.exact = true;
    return mask;
  }
  HookMask overridden_;  // transfer hooks; all of them, unless created by a factory
};

}  // namespace fulgur
