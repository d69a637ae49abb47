#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fulgur/core/dataset.h"
#include "fulgur/core/loader.h"
#include "fulgur/core/options.h"
#include "fulgur/core/sampler.h"

namespace fulgur {

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;                         ///< a RandomSampler; not together with `sampler`
  std::shared_ptr<const Sampler> sampler = {};  ///< default: sequential
  bool drop_last = false;                       ///< leaves out a last batch that is not full
  std::function<Batch(Batch)> transform = {};   ///< applied to each batch, on the thread that calls `next`
  std::string name = "data";                    ///< of the set in messages: `train`, `validation`, …
  /// Whole batches instead of samples; not together with `batch_size`, `shuffle`, `sampler`, `drop_last`.
  std::shared_ptr<const BatchSampler> batch_sampler = {};
  /// Makes a batch of samples that differ in shape: each tensor entry comes as a list, one tensor per sample (see
  /// `data/collate.h`). Runs on a worker thread, so it must be thread-safe.
  std::function<Batch(Batch)> collate = {};
  /// Threads that read ahead; 0: read where `next` is called; auto: tried in the first epoch.
  Auto<int64_t> num_workers = int64_t{0};
  int64_t prefetch_factor = 2;  ///< batches read ahead by worker
  /// Batches in pinned memory, those of `transform` too, for asynchronous copies to a GPU; auto: where CUDA is in use
  /// in this process.
  Auto<bool> pin_memory = {};
  double timeout_s = 0;      ///< for a batch that workers read; 0: none
  double slow_after_s = 30;  ///< a batch that takes longer is warned of, with its samples; 0: never
};

/// Batches of a dataset, read where `next` is called or ahead by worker threads: the same batches, bit for bit. Threads
/// start with the first batch, share the samples of each batch among them and stay from epoch to epoch; they end with
/// the loader. `num_workers * prefetch_factor` batches are read ahead at most.
///
/// Ranges of a dataset that lies in memory are handed out as views. The memory of other batches is used again once
/// nobody holds a tensor of it. Do not write into a batch without `clone()`.
///
/// What a dataset throws comes out of `next`, in the order of the batches and with the sample's index in the message:
/// Fulgur's errors with their type, others nested in a DataError. The batch does not count as consumed then.
///
/// The order is that of the sampler, so the state is only the position consumed: `epoch`, `batches`, `samples`. A state
/// of another epoch than the one that is started does not count. `samples` decides, so the batch size may change, and
/// the number of ranks (`reshard_state`), but for batch samplers.
class FULGUR_API DataLoader : public Loader {
 public:
  /// Throws a ConfigError for options that exclude each other or are out of range, a DataError where there would be no
  /// batch.
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options);
  ~DataLoader() override;

  std::optional<int64_t> size() const override;
  std::optional<int64_t> samples() const override;
  int64_t batch_size() const override;
  /// Throws a DataError where a loaded position lies behind the end of the set.
  void start_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  /// Throws a DataError where this rank's share would be no batch and it is to train, or where the sampler does not
  /// share its samples out.
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  /// By a DistributedSampler around the sampler; a batch sampler, and a DistributedSampler of the user's, share out as
  /// they do.
  void share_evenly(UnevenShares rest) override;
  /// Compares the sampler's order of this rank with that of all.
  bool shares_in_turns() const override;
  bool shuffles() const override;
  /// False with a batch sampler that shuffles.
  bool keep_order() override;
  /// Throws a CheckpointError with a batch sampler.
  StateTree reshard_state(const StateTree& state, int64_t from) const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  const Dataset& dataset() const;
  /// Threads in use; with `auto` the number that is tried or was found.
  int64_t num_workers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
