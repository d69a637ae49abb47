#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/dataset.h"
#include "fulgur/core/loader.h"
#include "fulgur/core/sampler.h"

namespace fulgur {

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;                            ///< a RandomSampler; not together with `sampler`
  std::shared_ptr<const Sampler> sampler = {};     ///< default: sequential
  bool drop_last = false;                          ///< leaves out a last batch that is not full
  std::function<Batch(Batch)> transform = {};      ///< applied to each batch, on the thread that calls `next`
  std::string name = "data";                       ///< of the set in messages: `train`, `validation`, …
};

/// Batches of a dataset, read on the thread that calls `next`. Ranges of a dataset that lies in memory are handed out as
/// views, other batches are tensors of their own; neither is written again. Do not write into a batch without `clone()`.
///
/// The order is that of the sampler, so the state is only the position consumed: `epoch`, `batches`, `samples`. A state of
/// another epoch than the one that is started does not count. `samples` decides, so the batch size may change.
class FULGUR_API DataLoader : public Loader {
 public:
  /// Throws a ConfigError for a batch size below 1 or `shuffle` with a `sampler`, a DataError where there would be no batch.
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);

  std::optional<int64_t> size() const override;
  std::optional<int64_t> samples() const override;
  int64_t batch_size() const override { return options_.batch_size; }
  /// Throws a DataError where a loaded position lies behind the end of the set.
  void start_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  /// Throws a DataError where this rank's share would be no batch.
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  bool shuffles() const override { return sampler_->shuffles(); }
  bool keep_order() override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  const Dataset& dataset() const { return *dataset_; }

 private:
  struct Position {
    int64_t epoch = 0;
    int64_t batches = 0;
    int64_t samples = 0;
  };
  int64_t usable_samples() const;
  void check_not_empty() const;
  Batch allocate(int64_t rows) const;

  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::shared_ptr<const Sampler> sampler_;
  SamplerContext context_;
  std::vector<int64_t> order_;
  Batch prototype_;
  Position position_;
  std::optional<Position> loaded_;
};

}  // namespace fulgur
