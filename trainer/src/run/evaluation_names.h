#pragma once

#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/stage.h"

namespace fulgur::detail {

/// The step that an evaluation calls.
inline const char* evaluation_step(RunningStage stage) {
  return stage == RunningStage::validate ? "validation_step"
         : stage == RunningStage::test   ? "test_step"
                                         : "predict_step";
}

/// The hook after each batch of an evaluation.
inline const char* hook_after_batch(RunningStage stage) {
  return stage == RunningStage::validate ? "on_validation_batch_end"
         : stage == RunningStage::test   ? "on_test_batch_end"
                                         : "on_predict_batch_end";
}

/// The name of a hook in which the module evaluates all batches of `stage` together at the end, for which its steps may
/// have gathered values in members; nullptr if it overrides none.
inline const char* hook_after_batches(const LightningModule& module, RunningStage stage) {
  const HookMask& overridden = ComponentAccess::overridden(module);
  const auto first_of = [&](Hook epoch_end, const char* epoch_end_name, Hook end, const char* end_name) {
    return overridden.has(epoch_end) ? epoch_end_name : overridden.has(end) ? end_name : nullptr;
  };
  switch (stage) {
    case RunningStage::test:
      return first_of(Hook::on_test_epoch_end, "on_test_epoch_end", Hook::on_test_end, "on_test_end");
    case RunningStage::predict:
      return first_of(Hook::on_predict_epoch_end, "on_predict_epoch_end", Hook::on_predict_end, "on_predict_end");
    default:
      return first_of(Hook::on_validation_epoch_end, "on_validation_epoch_end", Hook::on_validation_end,
                      "on_validation_end");
  }
}

}  // namespace fulgur::detail
