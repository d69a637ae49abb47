#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/errors.h"

namespace fulgur {

/// Writes checkpoints on a separate thread, from copies of the tensors, so that training continues meanwhile, and
/// verifies them (write_verified_checkpoint).
///
/// One save is in flight at most. The copies lie in host memory that is kept and used again, as much as the state is
/// large. All functions are for one thread, which may be any. A process that ends through `exit` waits for the save
/// first.
class FULGUR_API AsyncCheckpointWriter {
 public:
  /// How a save ended: a path, or an error.
  struct Result {
    uint64_t ticket = 0;
    std::filesystem::path path;            ///< as write_checkpoint returned it
    std::optional<CheckpointError> error;  ///< what came, also where it was no CheckpointError
    bool refused = false;                  ///< by `Rules::refuse`; the error says why
  };

  /// What a save may rely on, and what is looked at before it is written.
  struct Rules {
    /// True for a tensor on a device that is not written before `before_writes` is called. Without it all may be
    /// written at any time.
    std::function<bool(const Tensor&)> is_late;
    /// Copied with the content, for `refuse`; not written.
    StateTree facts;
    /// Called on the writer's thread with the copies, once they are complete: why the checkpoint is not to be written.
    std::function<std::optional<std::string>(const CheckpointContent& copies, const StateTree& facts)> refuse;
    /// The checkpoint is not written before `complete` was called.
    bool held = false;
  };

  AsyncCheckpointWriter();
  /// Waits for the save in flight. Errors that nobody took are logged.
  ~AsyncCheckpointWriter();
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;

  /// Copies `content` and returns; the file will hold it as it is now, whatever changes afterwards. Waits for the save
  /// in flight, if there is one. Tensors on a CUDA device are copied on a side stream into pinned memory: the host
  /// waits for nothing, and what the current stream does next waits for the copies of large tensors that are not late.
  /// Returns the ticket of this save, 1, 2, …. Throws a CheckpointError where the copy fails; nothing is in flight
  /// then.
  uint64_t submit(const std::filesystem::path& folder, const CheckpointContent& content, Rules rules);
  uint64_t submit(const std::filesystem::path& folder, const CheckpointContent& content);

  /// The save `ticket`, if it is in flight and `held`, may be written. `change` brings in what was not known when it
  /// was submitted; it is called on the writer's thread with the copied content. `exit()` and the destructor do not
  /// wait for this call: they write what was submitted.
  void complete(uint64_t ticket, std::function<void(CheckpointContent& copies)> change);

  /// What the current streams do from now on waits for the copies, also of late tensors. Costs nothing where all are
  /// made.
  void before_writes();

  /// Results that came since the last call, in order. Waits for nothing.
  std::vector<Result> poll();

  /// Waits until nothing is in flight, then as poll().
  std::vector<Result> wait();

  /// A save is in flight.
  bool busy() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace fulgur
