#include "fulgur/core/contracts/data_module.h"

#include "fulgur/core/contracts/module.h"

namespace fulgur {

Loaders DataModule::loaders(RunningStage stage) {
  switch (stage) {
    case RunningStage::train:
      return train_dataloader();
    case RunningStage::validate:
      return val_dataloader();
    case RunningStage::test:
      return test_dataloader();
    case RunningStage::predict:
      return predict_dataloader();
  }
  return {};
}

BatchTransforms::~BatchTransforms() = default;

const BatchTransforms* DataModule::batch_transforms(RunningStage) const { return nullptr; }
void DataModule::setup(TrainerFn) {}
void DataModule::teardown(TrainerFn) {}
void DataModule::on_exception(const std::exception&) {}

Batch DataModule::on_before_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx) {
  return module.on_before_batch_transfer(std::move(batch), loader_idx);
}

Batch DataModule::transfer_batch_to_device(LightningModule& module, Batch batch, const at::Device& device,
                                           int64_t loader_idx) {
  return module.transfer_batch_to_device(std::move(batch), device, loader_idx);
}

Batch DataModule::on_after_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx) {
  return module.on_after_batch_transfer(std::move(batch), loader_idx);
}

}  // namespace fulgur
