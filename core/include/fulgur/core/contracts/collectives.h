#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

enum class ReduceOp { sum, mean, min, max };

/// A reduction in progress. Its destructor does not wait.
class FULGUR_API PendingReduction {
 public:
  virtual ~PendingReduction();
  /// Waits for the result and returns it. Call it once.
  virtual std::vector<int64_t> take() = 0;
};

/// Communication between the ranks of a run. Every function must be called by all ranks in the same order; otherwise
/// the run ends with exit code 5, immediately or after the strategy's timeout. With one rank each is the identity and
/// costs nothing.
class FULGUR_API Collectives {
 public:
  virtual ~Collectives();
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// The reduced tensor; the input is not modified.
  virtual Tensor all_reduce(const Tensor& value, ReduceOp op) = 0;
  /// The tensors of all ranks, in rank order. With `with_gradients`, backward reaches the tensors of all ranks.
  virtual std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients = false) = 0;
  /// Gathers tensors with the same shape and dtype on all ranks; row r of the result is that of rank r. It makes one
  /// exchange on the tensor's device and does not synchronize the host, while all_gather first exchanges the shapes on
  /// the host. Each new shape is compared once between ranks; a mismatch is a DistributedError.
  virtual Tensor all_gather_same(const Tensor& value, bool with_gradients = false);
  virtual Tensor broadcast(const Tensor& value, int64_t source_rank) = 0;
  /// True if `value` is true on any rank.
  virtual bool any(bool value) = 0;
  /// Waits for all ranks; `reason` appears in the error if one does not arrive.
  virtual void barrier(std::string_view reason) = 0;
  /// The texts (any bytes) of all ranks, in rank order.
  virtual std::vector<std::string> gather_text(std::string_view text) = 0;
  /// The text of `source_rank`.
  virtual std::string broadcast_text(std::string_view text, int64_t source_rank) = 0;
  /// Starts the maximum over ranks of each number, on the host, in the background.
  virtual std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) = 0;
  /// Throws a DistributedError if an exchange on the device has failed. Called after the host has synchronized with the
  /// device: exchanges there fail asynchronously and leave undefined results.
  virtual void check() {}
  /// Sets what this rank is doing (a string literal), which is shown in the error message of a rank that times out
  /// waiting for it. It is cheap and does not communicate.
  virtual void set_activity(const char* /*what*/) {}
  /// Sets the number of training steps done, for the same message. Called by the Trainer.
  virtual void set_steps_done(int64_t /*steps*/) {}
};

/// Whether these numbers are equal on all ranks; every rank must pass the same count. Exchanges two integers per
/// number, regardless of the number of ranks.
FULGUR_API bool same_on_all_ranks(Collectives& collectives, std::vector<int64_t> numbers);

/// Collectives for one rank.
class FULGUR_API SingleProcessCollectives final : public Collectives {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  Tensor all_reduce(const Tensor& value, ReduceOp) override { return value; }
  std::vector<Tensor> all_gather(const Tensor& value, bool) override { return {value}; }
  Tensor broadcast(const Tensor& value, int64_t) override { return value; }
  bool any(bool value) override { return value; }
  void barrier(std::string_view) override {}
  std::vector<std::string> gather_text(std::string_view text) override { return {std::string(text)}; }
  std::string broadcast_text(std::string_view text, int64_t) override { return std::string(text); }
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override;
};

}  // namespace fulgur
