#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "checkpointing/run_checkpoint.h"
#include "fulgur/checkpoint/module_state.h"
#include "run/all_loggers.h"
#include "run/services.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {

/// The services that a run provides to its CheckpointStore.
class RunCheckpointHost final : public CheckpointHost {
 public:
  RunCheckpointHost(RunState& run, Services& services) : run_(run), services_(services) {}

  CheckpointContent collect(bool weights_only, StateTree store) override {
    const auto timer = run_.actions.time("collect_checkpoint");
    return collect_checkpoint(
        {.run = run_, .services = services_, .weights_only = weights_only, .store = std::move(store)});
  }
  std::function<void(CheckpointContent&)> late_values() override {
    return detail::late_values({.run = run_, .services = services_});
  }
  void write_rows(bool and_act) override { services_.rows.settle(and_act); }
  void settle_steps() override { services_.rank_checks.settle_same_steps(/*with_all=*/false); }
  void when_rows_are_written(std::function<void()> then) override { services_.rows.when_written(std::move(then)); }
  void check_ranks() override {
    services_.rank_checks.check_exchanges();
    services_.rank_checks.check_same_ranks();
  }
  std::unique_ptr<WholeParameters> whole_parameters() override { return run_.strategy->whole_parameters(); }
  bool divides_parameters() const override { return run_.strategy->divides_parameters(); }
  bool saves_parts() const override { return run_.strategy->saves_parts(); }
  Tensor weight_norm() override { return services_.finite.weight_norm(); }
  std::optional<std::string> bad_weight() override {
    const NamedTensors weights = module_state(*run_.model);
    if (!run_.strategy->saves_parts()) return services_.finite.bad_weight(weights);
    NamedTensors written;
    for (const auto& [name, value] : weights) {
      if (const auto part = run_.strategy->part_to_save(value))
        written.emplace_back(name, part->values);
      else if (run_.is_global_zero())
        written.emplace_back(name, value);
    }
    return services_.finite.bad_weight(written);
  }
  bool take_save_done() override { return services_.consensus.take_save_done(); }
  bool allows_saves() const override { return run_.checkpoints_allowed; }
  bool is_alone() const override { return run_.failed_alone; }
  void published(const CheckpointInfo& info) override {
    for (const auto& callback : run_.callbacks) callback->on_checkpoint_published(services_.context, info);
    for_all_loggers(run_.log_targets.size(), [&](size_t i) { run_.log_targets[i]->after_save_checkpoint(info); });
  }
  void failed(const CheckpointInfo& info, const CheckpointError& error) override {
    for (const auto& callback : run_.callbacks) callback->on_checkpoint_failed(services_.context, info, error);
  }

 private:
  RunState& run_;
  Services& services_;
};

}  // namespace fulgur::detail
