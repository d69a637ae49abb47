#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"

namespace fulgur::test {

/// Made samples that have a number, in all kinds of loaders. The number decides what a sample holds.
class DifferentialData : public DataModule {
 public:
  struct Options {
    int64_t num_train = 12, num_val = 4, batch_size = 2, eval_batch_size = 2;
    std::string order = "shuffled", kind = "sized", mode = "max_size_cycle";
    int64_t second = 0;  ///< samples of a second training loader
    int64_t val_loaders = 1;
    int64_t num_workers = 0;
    bool drop_last = false;
    bool by_epoch = false;  ///< training loaders hold the samples in an order of the epoch in which they are created
    bool batches = false;   ///< whole batches, from a batch sampler
    std::string signal_when = "never";  ///< the process sends itself SIGUSR1 when the data is created or destroyed
    void fields(Fields& f);
  };
  explicit DifferentialData(const Options& options);
  ~DifferentialData() override;
  Loaders loaders(RunningStage stage) override;

 private:
  std::shared_ptr<Loader> loader(int64_t first, int64_t count, bool train, const std::string& name) const;
  Options options_;
};

}  // namespace fulgur::test
