#include "fulgur/data/tensor_data_module.h"

#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"

namespace fulgur {

TensorDataModule::TensorDataModule(Sets sets, TensorDataOptions options)
    : options_(std::move(options)), sets_(std::move(sets)) {}

TensorDataModule::TensorDataModule(TensorDataOptions options) : options_(std::move(options)) {}

void TensorDataModule::set_data(Sets sets) { sets_ = std::move(sets); }

std::vector<std::shared_ptr<Loader>> TensorDataModule::loaders(RunningStage stage) {
  const bool training = stage == RunningStage::train;
  const auto& samples = training                          ? sets_.train
                        : stage == RunningStage::validate ? sets_.val
                        : stage == RunningStage::test     ? sets_.test
                                                          : sets_.predict;
  if (!samples) return {};
  DataLoaderOptions how;
  how.batch_size = training ? options_.batch_size : options_.eval_batch_size.value.value_or(options_.batch_size);
  how.shuffle = training && options_.shuffle;
  how.drop_last = training && options_.drop_last;
  options_.loading.apply(how);
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  return {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(*samples), std::move(how))};
}

}  // namespace fulgur
