#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>

#include "fulgur/strategies/process_group.h"
#include "gloo_backend.h"
#include "heartbeat.h"

namespace fulgur {

namespace detail {

/// Collectives over c10d: tensors on the host through Gloo, those on a GPU through the run's backend.
class C10dCollectives final : public Collectives {
 public:
  C10dCollectives(ProcessGroup& owner, c10::intrusive_ptr<c10d::ProcessGroup> group) : owner_(owner), group_(std::move(group)) {}

  int64_t rank() const override { return group_->getRank(); }
  int64_t world_size() const override { return group_->getSize(); }
  Tensor all_reduce(const Tensor& value, ReduceOp op) override;
  std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients) override;
  Tensor broadcast(const Tensor& value, int64_t source_rank) override;
  bool any(bool value) override;
  void barrier(std::string_view reason) override;
  std::vector<std::string> gather_text(std::string_view text) override;
  std::string broadcast_text(std::string_view text, int64_t source_rank) override;
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override;
  void set_activity(const char* what, int64_t step) override;

 private:
  std::vector<Tensor> gather_same(const Tensor& value);
  ProcessGroup& owner_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace detail

struct ProcessGroup::Impl {
  ProcessGroupOptions options;
  ProcessPlace place;
  detail::GlooAddress address;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends;
  std::optional<detail::Heartbeat> heartbeat;
  std::optional<detail::C10dCollectives> collectives;
  bool short_timeout = false;
};

}  // namespace fulgur
