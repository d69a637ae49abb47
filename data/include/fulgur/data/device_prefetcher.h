#pragma once

#include <memory>

#include "fulgur/core/loader.h"
#include "fulgur/data/input_sets.h"

namespace fulgur {

/// Copies the next batch to the device while the last one is computed with, on a stream of its own, once `read_ahead`
/// says that the device has its work. The copies are asynchronous where the loader's batches are pinned (`pin_memory`).
/// On a CPU batches pass through.
///
/// The current stream waits for the copy when the batch comes out of `next`; the host does not. Transfer hooks see a
/// batch that is on the device already. One batch is read ahead; the state is that of the batches given out.
class FULGUR_API DevicePrefetcher : public Loader {
 public:
  /// Throws a ConfigError for no loader, and what LibTorch throws for a device that is not there.
  DevicePrefetcher(std::shared_ptr<Loader> loader, at::Device device);
  ~DevicePrefetcher() override;

  std::optional<int64_t> size() const override { return loader_->size(); }
  std::optional<int64_t> samples() const override { return loader_->samples(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  void start_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  /// To be called when the step of the last batch was launched: the following batch is read and its copy begun. `next`
  /// does not, since a loader that is late would hold up the step of a batch that is there.
  void read_ahead();
  /// From the next batch that is read on, batches are copied into these sets where their kind fits; nullptr: into fresh
  /// memory again. On a CPU it does nothing.
  void write_into(std::shared_ptr<InputSets> sets);
  void unread() override;
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override {
    loader_->configure(seed, rank, world_size);
  }
  void share_evenly(UnevenShares rest) override { loader_->share_evenly(rest); }
  bool shares_in_turns() const override { return loader_->shares_in_turns(); }
  bool shuffles() const override { return loader_->shuffles(); }
  bool keep_order() override { return loader_->keep_order(); }
  StateTree reshard_state(const StateTree& state, int64_t from) const override {
    return loader_->reshard_state(state, from);
  }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Device;
  std::shared_ptr<Loader> loader_;
  std::unique_ptr<Device> device_;  ///< none on a CPU
};

}  // namespace fulgur
