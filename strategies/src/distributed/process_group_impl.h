#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distributed/gloo_backend.h"
#include "distributed/heartbeat.h"
#include "distributed/layer_exchange.h"
#include "fulgur/strategies/process_group.h"

namespace fulgur {

namespace detail {

/// Collectives over c10d: host tensors through Gloo, GPU tensors through the run's backend.
class C10dCollectives final : public Collectives, public LayerExchange {
 public:
  C10dCollectives(ProcessGroup& owner, c10::intrusive_ptr<c10d::ProcessGroup> group)
      : owner_(owner), group_(std::move(group)) {}

  int64_t rank() const override { return group_->getRank(); }
  /// The rank in the run, which that in this group may differ from.
  int64_t rank_in_run() const { return owner_.place().rank; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  int64_t world_size() const override { return group_->getSize(); }
  Tensor all_reduce(const Tensor& value, ReduceOp op) override;
  std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients) override;
  Tensor all_gather_same(const Tensor& value, bool with_gradients) override;
  Tensor broadcast(const Tensor& value, int64_t source_rank) override;
  bool any(bool value) override;
  void barrier(std::string_view reason) override;
  std::vector<std::string> gather_text(std::string_view text) override;
  std::string broadcast_text(std::string_view text, int64_t source_rank) override;
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override;
  void check() override { owner_.check(); }
  void set_activity(const char* what) override;
  void set_steps_done(int64_t steps) override;

  void sum(Tensor values) override;
  /// Starts the exchange of a buffer [ranks · part], of which each rank has its own part: afterwards all have all. All
  /// ranks have the same dtype and size.
  c10::intrusive_ptr<c10d::Work> start_gather(const Tensor& buffer);
  /// The same with this rank's part in other memory.
  c10::intrusive_ptr<c10d::Work> start_gather(Tensor buffer, Tensor own);
  /// Starts the sum over ranks of a buffer [ranks · part], which it may overwrite. Returns this rank's part of the sum,
  /// which is there after the work; the work holds the buffer until then.
  std::pair<Tensor, c10::intrusive_ptr<c10d::Work>> start_sum_of_parts(Tensor buffer);
  Tensor gather_rows(const Tensor& value) override;
  Tensor reduce_rows(const Tensor& rows) override;

 private:
  /// The dtypes and sizes of all ranks, over Gloo.
  std::vector<Tensor> gather_shapes(const Tensor& value);
  void require_same_shape(const Tensor& value);
  bool is_over_nccl(const Tensor& value) const;

  ProcessGroup& owner_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::mutex shapes_mutex_;  // backward's thread exchanges too
  std::set<std::vector<int64_t>> same_shapes_;
};

}  // namespace detail

/// Runs an exchange of the group; an error names it, and says what the ranks did.
template <class Exchange>
auto run_exchange(const ProcessGroup& group, const char* name, Exchange&& exchange) {
  try {
    return exchange();
  } catch (...) {
    group.rethrow(name);
  }
}

struct ProcessGroup::Impl {
  /// Connects the ranks of a group of `size` ranks, of which this is `rank`. Keys in the store begin with `prefix`.
  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& prefix, int rank, int size);

  ProcessGroupOptions options;
  ProcessPlace place;
  detail::GlooAddress address;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  /// Those of all groups; that of all ranks first. `nccl` is empty with another backend.
  std::vector<c10::intrusive_ptr<c10d::Backend>> gloo, nccl;
  std::optional<detail::Heartbeat> heartbeat;
  std::optional<detail::C10dCollectives> collectives;
  std::atomic<bool> short_timeout = false;  // read by the thread that watches launches
  std::atomic<bool> launch_was_late = false;
  bool ended = false;  ///< NCCL was shut down or aborted
};

}  // namespace fulgur
