#include "context/run_checkpoint_host.h"

#include "checkpointing/run_checkpoint.h"

namespace fulgur::detail {

CheckpointContent RunCheckpointHost::collect(bool weights_only, StateTree store) {
  return collect_checkpoint(
      {.run = run_, .services = services_, .weights_only = weights_only, .store = std::move(store)});
}

std::function<void(CheckpointContent&)> RunCheckpointHost::late_values() {
  return detail::late_values({.run = run_, .services = services_});
}

void RunCheckpointHost::check_ranks() {
  services_.rank_checks.check_exchanges();
  services_.rank_checks.check_same_ranks();
}

void RunCheckpointHost::published(const CheckpointInfo& info) {
  for (const auto& callback : run_.callbacks) callback->on_checkpoint_published(services_.context, info);
  for (const auto& logger : run_.log_targets) logger->after_save_checkpoint(info);
}

void RunCheckpointHost::failed(const CheckpointInfo& info, const CheckpointError& error) {
  for (const auto& callback : run_.callbacks) callback->on_checkpoint_failed(services_.context, info, error);
}

}  // namespace fulgur::detail
