#pragma once

#include <optional>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"

namespace fulgur {

/// How `TensorDataModule` makes batches.
struct TensorDataOptions {
  int64_t batch_size = 64;
  Auto<int64_t> eval_batch_size = {};  ///< auto means batch_size
  bool shuffle = true;                 ///< applies to the training set
  bool drop_last = false;              ///< applies to the training set
  LoadingOptions loading = {};
};

/// Data sets from tensors in memory, samples in dimension 0; omitted sets have no loader. Entries keep their names and
/// dtypes. Throws a DataError for entries of different lengths, or if a loader would have no batch.
class FULGUR_API TensorDataModule : public DataModule {
 public:
  struct Sets {
    std::optional<Batch> train = {}, val = {}, test = {}, predict = {};
  };
  explicit TensorDataModule(Sets sets, TensorDataOptions options = {});
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;

 protected:
  /// Use it for data created in `setup`, and pass the sets with `set_data`.
  explicit TensorDataModule(TensorDataOptions options);
  void set_data(Sets sets);

 private:
  TensorDataOptions options_;
  Sets sets_;
};

}  // namespace fulgur
