#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/sampler.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;                         ///< uses a RandomSampler; not together with `sampler`
  std::shared_ptr<const Sampler> sampler = {};  ///< sequential by default
  bool drop_last = false;                       ///< drops an incomplete last batch
  std::function<Batch(Batch)> transform = {};   ///< applied to each batch, on the thread that calls `next`
  std::string name = "data";                    ///< name of the set in messages: `train`, `validation`, …
  /// Chooses whole batches instead of single samples. It cannot be combined with `batch_size`, `shuffle`, `sampler`,
  /// `drop_last`.
  std::shared_ptr<const BatchSampler> batch_sampler = {};
  /// Makes a batch of samples that differ in shape: each tensor entry is a list with one tensor per sample (see
  /// `fulgur/data/collate.h`). Runs on a worker thread, so it must be thread-safe.
  std::function<Batch(Batch)> collate = {};
  /// The number of threads that prefetch. 0: `next` reads the batch on the calling thread; auto: chosen by measurements
  /// in the first epoch.
  Auto<int64_t> num_workers = int64_t{0};
  int64_t prefetch_factor = 2;  ///< batches prefetched per worker
  /// Puts batches, including those of `transform`, in pinned memory, for asynchronous copies to a GPU. With auto it
  /// does so if CUDA is in use in this process.
  Auto<bool> pin_memory = {};
  double timeout_s = 0;      ///< limit for a batch from the workers; 0 for none
  double slow_after_s = 30;  ///< a batch that takes longer gives a warning with its samples; 0 for never
};

/// Batches of a dataset, which `next` reads or worker threads prefetch. Both give the same batches, bit for bit.
/// Threads start with the first batch, share the samples of each batch among them and stay from epoch to epoch; they
/// end with the loader. At most `num_workers * prefetch_factor` batches are prefetched.
///
/// Ranges of an in-memory dataset are returned as views. The memory of other batches is reused once none of their
/// tensors is held any more. Do not write into a batch without `clone()`.
///
/// Exceptions of the dataset are rethrown from `next`, in batch order and with the sample's index in the message:
/// Fulgur's errors keep their type, others are nested in a DataError. The batch then does not count as consumed.
///
/// The sampler determines the order, so the state is only the consumed position: `epoch`, `batches`, `samples`. A state
/// of an epoch other than the one started is ignored. `samples` is decisive, so the batch size and the number of ranks
/// may change (`reshard_state`), except with batch samplers. If the number of samples, shuffling or the seed has
/// changed within the epoch, `start_epoch` warns.
class FULGUR_API DataLoader : public Loader {
 public:
  /// Throws a ConfigError for options that exclude each other or are out of range, and a DataError if there would be no
  /// batch.
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);
  ~DataLoader() override;

  std::optional<int64_t> size() const override;
  std::optional<int64_t> samples() const override;
  int64_t batch_size() const override;
  /// Throws a DataError if a loaded position is beyond the end of the set.
  void check_loaded(int64_t epoch) override;
  void start_epoch(int64_t epoch) override;
  void restart_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  /// Throws a DataError if this rank's share would contain no batch in training, or if the sampler does not divide its
  /// samples among the ranks.
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  /// Wraps the sampler in a DistributedSampler; a batch sampler and a user's DistributedSampler stay as they are.
  void share_evenly(UnevenShares rest) override;
  /// Compares the sampler's order for this rank with its order for a single rank.
  bool shares_in_turns() const override;
  bool shuffles() const override;
  /// False with a batch sampler that shuffles.
  bool keep_order() override;
  /// False with a batch sampler. Throws a ConfigError for a size below 1, and a DataError if there would be no batch.
  bool set_batch_size(std::optional<int64_t> size) override;
  /// Throws a CheckpointError with a batch sampler.
  StateTree reshard_state(const StateTree& state, int64_t from) const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  const Dataset& dataset() const;
  /// Threads in use; with `auto`, the number that is being tried or was found.
  int64_t num_workers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
