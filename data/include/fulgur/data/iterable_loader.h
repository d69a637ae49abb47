#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fulgur/core/dataset.h"
#include "fulgur/core/loader.h"

namespace fulgur {

/// How an IterableLoader makes batches.
struct IterableLoaderOptions {
  int64_t batch_size = 1;
  bool drop_last = false;                      ///< leaves out a last batch that is not full
  std::function<Batch(Batch)> transform = {};  ///< applied to each batch, on the thread that calls `next`
  std::string name = "data";                   ///< of the set in messages
  int64_t num_workers = 0;                     ///< 0, or 1: a thread reads ahead (a stream has one position, so no more)
  int64_t prefetch_factor = 2;                 ///< batches that it reads ahead
};

/// Batches of a stream, whose length is not known. The state has the dataset's own state as it was behind the batch that was
/// given out last, whatever was read ahead.
class FULGUR_API IterableLoader : public Loader {
 public:
  /// Throws a ConfigError for options out of range.
  IterableLoader(std::shared_ptr<IterableDataset> dataset, IterableLoaderOptions options);
  ~IterableLoader() override;

  std::optional<int64_t> size() const override { return std::nullopt; }
  std::optional<int64_t> samples() const override { return std::nullopt; }
  int64_t batch_size() const override;
  void start_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
