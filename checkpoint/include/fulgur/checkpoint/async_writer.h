#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// Writes checkpoints on a separate thread, from copies of the tensors, so that training continues meanwhile, and
/// verifies them (write_verified_checkpoint).
///
/// At most one save is in flight. The copies are in host memory that is kept and reused, as large as the state. All
/// functions must be called from the same thread, which may be any. A process that ends through `exit` waits for the
/// save first.
class FULGUR_API AsyncCheckpointWriter {
 public:
  /// Result of a save: a path, or an error.
  struct Result {
    uint64_t ticket = 0;
    std::filesystem::path path;  ///< as write_checkpoint returned it
    /// Set if the save failed; other exceptions are converted to a CheckpointError.
    std::optional<CheckpointError> error;
    bool refused = false;  ///< `Rules::refuse` refused the checkpoint; the error says why
  };

  /// What a save may rely on, and what is checked before it is written.
  struct Rules {
    /// True for a device tensor that is not written before `before_writes` is called. If not set, any tensor may be
    /// written at any time.
    std::function<bool(const Tensor&)> is_late;
    /// Copied with the content and passed to `refuse`, but not written.
    StateTree facts;
    /// Called on the writer's thread with the copies, once they are complete: returns the reason if the checkpoint must
    /// not be written.
    std::function<std::optional<std::string>(const CheckpointContent& copies, const StateTree& facts)> refuse;
    /// Writes the checkpoint, on the writer's thread; write_verified_checkpoint if not set.
    std::function<std::filesystem::path(const std::filesystem::path& folder, const CheckpointContent& copies)> write =
        {};
    /// The checkpoint is not written before `complete` is called.
    bool held = false;
  };

  AsyncCheckpointWriter();
  /// Waits for the save in flight. Errors that were not fetched are logged.
  ~AsyncCheckpointWriter();
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;

  /// Copies `content` and returns; the file will hold its current state, whatever changes afterwards. Waits for a save
  /// in flight, if there is one. Tensors on a CUDA device are copied on a side stream into pinned memory: the host does
  /// not wait, and the current stream's next work waits for the copies of large tensors that are not late. Returns the
  /// ticket of this save, 1, 2, …. Throws a CheckpointError if the copy fails; no save is in flight then.
  uint64_t submit(const std::filesystem::path& folder, const CheckpointContent& content, Rules rules);
  uint64_t submit(const std::filesystem::path& folder, const CheckpointContent& content);

  /// Allows the save `ticket` to be written, if it is in flight and `held`. `change` adds what was not yet known at
  /// submission; it is called on the writer's thread with the copied content. `exit()` and the destructor do not
  /// wait for this call: they write what was submitted.
  void complete(uint64_t ticket, std::function<void(CheckpointContent& copies)> change);

  /// Later work on the current streams waits for the copies, including late tensors. Costs nothing if all copies are
  /// done.
  void before_writes();

  /// Returns the results since the last call, in order, without waiting.
  std::vector<Result> poll();

  /// Waits until no save is in flight, then returns what poll() returns.
  std::vector<Result> wait();

  /// True if a save is in flight.
  bool busy() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace fulgur
