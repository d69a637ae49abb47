#include "events.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/text.h"

namespace fulgur::test {
namespace fs = std::filesystem;

void DifferentialEvents::Options::fields(Fields& f) {
  f(save_at, "save_at", "Asks for a checkpoint after these batches of the run.");
  f(stop_at, "stop_at", "Asks for a stop after these batches of the run.");
  f(kill_at, "kill_at", "The process ends itself at that batch of the run; -1: never.");
  f(kill_place, "kill_place", "Where in the step, or the next such place.")
      .one_of({"batch_start", "after_backward", "before_step", "before_zero_grad", "batch_end", "validation_batch",
               "validation_end", "epoch_start", "epoch_end", "save", "published", "setup", "fit_start", "train_start",
               "train_end", "fit_end", "teardown"});
  f(kill_by, "kill_by", "By what the process ends.").one_of({"SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1", "exception"});
  f(save_failed, "save_failed", "Asks for a checkpoint after an exception.");
  f(clock, "clock", "Each batch takes a second of the run's clock.");
  f(full, "full", "The disk is full between these batches of the process.");
  f(kill_rank, "kill_rank", "The rank that ends itself; -1: each.");
  f(folder, "folder", "Where notes are kept.");
}

StateTree DifferentialEvents::state() const {
  return StateTree::map({{"life", life_},
                         {"batches", batches_},
                         {"epochs_begun", epochs_begun_},
                         {"epochs_ended", epochs_ended_},
                         {"validation_batches", validation_batches_}});
}

void DifferentialEvents::load_state(const StateTree& state) {
  // In training, what a batch or a hook that failed has changed is taken back.
  if (!trains_) life_ = state.at("life").as_int() + 1;
  batches_ = state.at("batches").as_int();
  epochs_begun_ = state.at("epochs_begun").as_int();
  epochs_ended_ = state.at("epochs_ended").as_int();
  validation_batches_ = state.at("validation_batches").as_int();
}

void DifferentialEvents::setup(RunContext& run, TrainerFn) {
  run_of_process = &run;
  fs::create_directories(fs::path(options_.folder) / "seen");
  fs::create_directories(fs::path(options_.folder) / "from");
  at(run, "setup");
}

void DifferentialEvents::on_fit_start(RunContext& run) { at(run, "fit_start"); }

void DifferentialEvents::teardown(RunContext& run, TrainerFn) {
  at(run, "teardown");
  run_of_process = nullptr;
}

void DifferentialEvents::on_train_start(RunContext& run) {
  trains_ = true;
  // After an exception the batch that failed does not count.
  batches_ = batches_at_start_ = run.progress().batches_total.completed;
  int64_t published = 0;
  std::ifstream(fs::path(options_.folder) / "published") >> published;
  if (run.progress().global_step < published)
    throw std::logic_error(cat("training begins at step ", run.progress().global_step, ", though a checkpoint of step ",
                               published, " was published"));
  // A process that was ended before its first checkpoint has left notes under the same number.
  constexpr int64_t kMostRanks = 8;
  std::error_code error;
  fs::remove(fs::path(options_.folder) / "seen" / cat(life_, ".", run.rank()), error);
  if (run.rank() == 0) {
    for (int64_t rank = run.world_size(); rank < kMostRanks; ++rank)
      fs::remove(fs::path(options_.folder) / "seen" / cat(life_, ".", rank), error);
    std::ofstream(fs::path(options_.folder) / "from" / std::to_string(life_)) << batches_ << '\n';
  }
  at(run, "train_start");
}

void DifferentialEvents::on_train_batch_start(RunContext& run, const Batch& batch, int64_t) {
  note_rate(run);
  note(batch);
  at(run, "batch_start");
}
void DifferentialEvents::on_train_epoch_start(RunContext& run) {
  ++epochs_begun_;
  at(run, "epoch_start");
}
void DifferentialEvents::on_validation_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) {
  ++validation_batches_;
  at(run, "validation_batch");
}
void DifferentialEvents::on_validation_end(RunContext& run) {
  // Of a name that both stages log, decisions are made by validation's value.
  const auto both = run.monitored_metric("loss"), own = run.monitored_metric("val_loss");
  if (both && own && std::abs(*both - *own - 1) > 1e-6 * (1 + std::abs(*own)))
    throw std::logic_error(cat("loss is ", *both, " after a validation that logged ", *own + 1));
  at(run, "validation_end");
}
void DifferentialEvents::on_train_epoch_end(RunContext& run) {
  ++epochs_ended_;
  at(run, "epoch_end");
}
void DifferentialEvents::on_save_checkpoint(RunContext& run, StateTree&) { at(run, "save"); }
void DifferentialEvents::on_checkpoint_published(RunContext& run, const CheckpointInfo& info) {
  if (run.rank() == 0 && !info.request.weights_only)
    std::ofstream(fs::path(options_.folder) / "published") << info.global_step << '\n';
  at(run, "published");
}

void DifferentialEvents::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  write_note(run);
  ++batches_;
  ++batches_of_process;
  const auto has = [&](const std::vector<int64_t>& all) { return std::ranges::find(all, batches_) != all.end(); };
  if (has(options_.save_at)) {
    CheckpointRequest request;
    request.name = cat("asked-", batches_);
    request.reason = "the plan";
    request.owner = state_key();
    run.request_checkpoint(request);
  }
  if (has(options_.stop_at)) run.request_stop("the plan");
  at(run, "batch_end");
}

void DifferentialEvents::on_exception(RunContext& run, const std::exception& error) {
  // A batch that fails after its step counts, and on_train_batch_end is not called for it.
  if (trains_ && run.progress().batches_total.completed > batches_) write_note(run);
  const bool trained = trains_ && run.progress().batches_total.completed > batches_at_start_;
  if (!options_.save_failed || !trained || dynamic_cast<const Interrupted*>(&error) != nullptr) return;
  CheckpointRequest request;
  request.name = cat("failed-", batches_);
  request.reason = error.what();
  request.owner = state_key();
  run.request_checkpoint(request);
}

void DifferentialEvents::on_train_end(RunContext& run) { at(run, "train_end"); }

void DifferentialEvents::on_fit_end(RunContext& run) {
  at(run, "fit_end");
  CheckpointContent content;
  const auto whole = run.run_weights().whole_parameters();
  content.module = module_state(run.module());
  content.aliases = parameter_aliases(run.module());
  StateTree::List optimizers;
  for (const Optimizer* optimizer : run.optimizers()) {
    // Only rank 0 gets a state that ranks share.
    const StateTree state = run.run_weights().optimizer_state(*optimizer);
    optimizers.push_back(run.world_size() == 1
                             ? state
                             : unpack_state(run.collectives().broadcast_text(pack_state(state), /*source_rank=*/0)));
  }
  content.optimizers = std::move(optimizers);
  StateTree::Map metrics, facts;
  for (const std::string& name : run.logged_metrics().metric_names())
    if (const auto value = run.metric(name)) metrics[name] = *value;
  const Progress& progress = run.progress();
  facts["global_step"] = progress.global_step;
  facts["epochs"] = progress.epochs.completed;
  facts["batches"] = progress.batches_total.completed;
  facts["samples_seen"] = progress.samples_seen;
  facts["tokens_seen"] = progress.tokens_seen;
  facts["validations"] = progress.validations;
  StateTree::List rates;
  for (const Optimizer* optimizer : run.optimizers())
    for (const ParamGroup& group : optimizer->groups()) rates.push_back(group.lr);
  facts["rates"] = std::move(rates);
  StateTree::Map counted{
      {"epochs_begun", epochs_begun_}, {"epochs_ended", epochs_ended_}, {"validation_batches", validation_batches_}};
  content.state =
      StateTree::map({{"metrics", std::move(metrics)}, {"facts", std::move(facts)}, {"counted", std::move(counted)}});
  batches_of_process = -1;  // a full disk is not the result's
  write_checkpoint(fs::path(options_.folder) / cat("result.", run.rank(), ".ckpt"), content);
}

void DifferentialEvents::at(RunContext& run, std::string_view place) {
  if (options_.kill_at < 0 || place != options_.kill_place || batches_ < options_.kill_at) return;
  if (options_.kill_rank >= 0 && options_.kill_rank != run.rank()) return;
  if (std::exchange(ended_, true)) return;
  const std::string& by = options_.kill_by;
  if (by == "exception") throw std::runtime_error("ended by the plan");
  ::raise(by == "SIGTERM" ? SIGTERM : by == "SIGINT" ? SIGINT : by == "SIGUSR1" ? SIGUSR1 : SIGKILL);
}

void DifferentialEvents::note_rate(RunContext& run) {
  if (run.rank() != 0 || run.optimizers().empty()) return;
  std::ofstream file(fs::path(options_.folder) / "rates", std::ios::app);
  file << run.progress().samples_seen << ' ' << run.progress().global_step << ' '
       << cat(run.optimizers().front()->groups().front().lr) << '\n';
}

void DifferentialEvents::note(const Batch& batch) {
  note_ = cat(batches_);
  for (const auto& [name, value] : batch) {
    if (!name.ends_with("id")) continue;
    const Tensor ids = std::get<Tensor>(value).cpu();
    for (int64_t i = 0; i < ids.numel(); ++i) note_ += cat(" ", ids.const_data_ptr<int64_t>()[i]);
  }
}

void DifferentialEvents::write_note(RunContext& run) const {
  std::ofstream(fs::path(options_.folder) / "seen" / cat(life_, ".", run.rank()), std::ios::app) << note_ << '\n';
}

}  // namespace fulgur::test
