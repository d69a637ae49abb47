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
  int64_t num_workers = 0;      ///< 0, or 1: a thread reads ahead (a stream has one position, so no more)
  int64_t prefetch_factor = 2;  ///< batches that it reads ahead
  double timeout_s = 0;         ///< for a batch that the thread reads; 0: none
  double slow_after_s = 30;     ///< a batch that takes longer is warned of; 0: never
};

/// Batches of a stream, whose length is not known. The state has the dataset's own state as it was behind the batch
/// that was given out last, whatever was read ahead.
///
/// What the dataset throws comes out of `next` with the batch's number in the message: Fulgur's errors with their type,
/// others nested in a DataError. The batch does not count as consumed then, nor where it is late (`timeout_s`). A
/// thread that is stuck in the dataset keeps it: until it comes back, `next` throws the same error, and so does going
/// to another place.
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
  /// Throws a CheckpointError: a stream cannot be shared out again from its middle.
  StateTree reshard_state(const StateTree& state, int64_t from) const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
