#pragma once

#include <memory>

#include "fulgur/core/contracts/loader.h"
#include "fulgur/data/input_sets.h"

namespace fulgur {

/// Copies the next batch to the device on a side stream while the current one is being computed, once `read_ahead` says
/// that the device has work. The copies are asynchronous if the loader's batches are pinned (`pin_memory`). On a CPU
/// batches pass through.
///
/// The current stream waits for the copy when `next` returns the batch; the host does not. Transfer hooks see a batch
/// that is already on the device. One batch is prefetched; the state is that of the returned batches.
class FULGUR_API DevicePrefetcher : public Loader {
 public:
  /// Throws a ConfigError for a null loader, and LibTorch's error for a device that does not exist.
  DevicePrefetcher(std::shared_ptr<Loader> loader, at::Device device);
  ~DevicePrefetcher() override;

  std::optional<int64_t> size() const override { return loader_->size(); }
  std::optional<int64_t> samples() const override { return loader_->samples(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  void check_loaded(int64_t epoch) override { loader_->check_loaded(epoch); }
  void start_epoch(int64_t epoch) override;
  void restart_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  /// Reads the following batch and starts its copy; call it after the step of the last batch was launched. `next` does
  /// not do this, since a slow loader would delay the step of a batch that is ready.
  void read_ahead();
  /// From the next batch on, batches are copied into these sets if their kind matches; nullptr: into new memory again.
  /// No effect on a CPU.
  void write_into(std::shared_ptr<InputSets> sets);
  void unread() override;
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override {
    loader_->configure(seed, rank, world_size);
  }
  void share_evenly(UnevenShares rest) override { loader_->share_evenly(rest); }
  bool shares_in_turns() const override { return loader_->shares_in_turns(); }
  bool shuffles() const override { return loader_->shuffles(); }
  bool keep_order() override { return loader_->keep_order(); }
  bool set_batch_size(std::optional<int64_t> size) override { return loader_->set_batch_size(size); }
  StateTree reshard_state(const StateTree& state, int64_t from) const override {
    return loader_->reshard_state(state, from);
  }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Device;
  /// Calls `use` with what batches come from: what reads ahead for the device, or the loader.
  template <class Use>
  decltype(auto) with_source(Use&& use) const;
  std::shared_ptr<Loader> loader_;
  std::unique_ptr<Device> device_;  ///< null on a CPU
};

}  // namespace fulgur
