#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/loader.h"

namespace fulgur {

/// How an IterableLoader makes batches.
struct IterableLoaderOptions {
  int64_t batch_size = 1;
  bool drop_last = false;                      ///< drops an incomplete last batch
  std::function<Batch(Batch)> transform = {};  ///< applied to each batch, on the thread that calls `next`
  std::string name = "data";                   ///< name of the set in messages
  /// 0: no prefetching; 1: one thread prefetches. More threads are impossible, since a stream has one position.
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;  ///< number of batches prefetched
  double timeout_s = 0;         ///< limit for a batch from the thread; 0 for none
  double slow_after_s = 30;     ///< a batch that takes longer gives a warning; 0 for never
};

/// Batches of a stream, whose number is unknown. The state contains the dataset's own state after the batch returned
/// last, regardless of prefetching.
///
/// Exceptions of the dataset are rethrown from `next` with the batch number in the message: Fulgur's errors keep their
/// type, others are nested in a DataError. The batch then does not count as consumed, nor does one that times out
/// (`timeout_s`). While a thread is stuck in the dataset, `next` throws the same error, and so does moving to another
/// position.
class FULGUR_API IterableLoader : public Loader {
 public:
  /// Throws a ConfigError for options out of range.
  IterableLoader(std::shared_ptr<IterableDataset> dataset, IterableLoaderOptions options);
  ~IterableLoader() override;

  std::optional<int64_t> size() const override { return std::nullopt; }
  /// Those of the dataset, if it knows them.
  std::optional<int64_t> samples() const override;
  int64_t batch_size() const override;
  void check_loaded(int64_t epoch) override;
  void start_epoch(int64_t epoch) override;
  void restart_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  /// Throws a ConfigError for a size below 1.
  bool set_batch_size(std::optional<int64_t> size) override;
  /// Throws a CheckpointError: a stream cannot be redistributed from its middle.
  StateTree reshard_state(const StateTree& state, int64_t from) const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
