#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

enum class ReduceOp { sum, mean, min, max };

/// A reduction under way. Its destructor waits for nothing.
class FULGUR_API PendingReduction {
 public:
  virtual ~PendingReduction();
  /// The result, once; waits for it.
  virtual std::vector<int64_t> take() = 0;
};

/// Communication between the ranks of a run. Every function must be called by all ranks in the same order, else the run
/// ends with exit code 5, at once or after the strategy's timeout; in a world of one each is the identity and costs
/// nothing.
class FULGUR_API Collectives {
 public:
  virtual ~Collectives();
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// The reduced tensor; the input is not changed.
  virtual Tensor all_reduce(const Tensor& value, ReduceOp op) = 0;
  /// Each rank's tensor, by rank. With `with_gradients`, backward reaches the tensors of all ranks.
  virtual std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients = false) = 0;
  /// The same for tensors that have one shape and dtype on all ranks: row r of the result is rank r's. One exchange
  /// where the tensor is, which the host does not wait for; all_gather first exchanges the shapes on the host. Shapes
  /// are compared the first time that one comes, and a difference then is a DistributedError.
  virtual Tensor all_gather_same(const Tensor& value, bool with_gradients = false);
  virtual Tensor broadcast(const Tensor& value, int64_t source_rank) = 0;
  /// True where `value` is true on any rank.
  virtual bool any(bool value) = 0;
  /// Waits for all ranks; `reason` appears in the error when one does not come.
  virtual void barrier(std::string_view reason) = 0;
  /// Each rank's text (any bytes), by rank.
  virtual std::vector<std::string> gather_text(std::string_view text) = 0;
  /// The text of `source_rank`.
  virtual std::string broadcast_text(std::string_view text, int64_t source_rank) = 0;
  /// Begins the maximum over ranks of each number, on the host and behind training's back.
  virtual std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) = 0;
  /// Throws a DistributedError where an exchange on the device has failed. Called where the host has waited for the
  /// device: exchanges there fail in the background, and what they computed is undefined then.
  virtual void check() {}
  /// What this rank does now (a literal), for the message of a rank that waits for it in vain. Cheap; no communication.
  virtual void set_activity(const char* /*what*/) {}
  /// How many steps of training are done, for the same message. The Trainer calls it.
  virtual void set_steps_done(int64_t /*steps*/) {}
};

/// Whether these numbers are the same on all ranks, each of which must have as many. Exchanges two integers a number,
/// however many ranks there are.
FULGUR_API bool same_on_all_ranks(Collectives& collectives, std::vector<int64_t> numbers);

/// The world of one.
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
