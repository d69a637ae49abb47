// SIGTERM at each place of a run: it ends with a checkpoint, and continues to the same bits.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <csignal>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/loggers/jsonl_logger.h"

namespace preemption_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

// Where the signal comes. One number a place; -1: nowhere.
enum Place {
  nowhere,
  sanity_check,
  train_start,
  epoch_start,
  first_batch,
  in_window,
  window_end,
  before_backward,
  after_backward,
  before_step,
  validation_start,
  validation_batch,
  validation_end,
  epoch_end,
  last_batch,
  save,
  second_epoch_start,
  in_second_epoch,
  place_count
};

struct Terminating : Callback {
  int place = nowhere;
  bool sent = false;
  void at(int here, bool holds = true) {
    if (here != place || !holds || sent) return;
    sent = true;
    std::raise(SIGTERM);
  }
  void on_sanity_check_start(RunContext&) override { at(sanity_check); }
  void on_train_start(RunContext&) override { at(train_start); }
  void on_train_epoch_start(RunContext& run) override {
    at(epoch_start);
    at(second_epoch_start, run.progress().epoch == 1);
  }
  void on_train_batch_start(RunContext& run, const Batch&, int64_t i) override {
    at(first_batch, i == 0);
    at(in_window, i == 4);
    at(window_end, i == 5);
    at(last_batch, i == 9);
    at(in_second_epoch, run.progress().epoch == 1 && i == 4);
  }
  void on_before_backward(RunContext& run, const Tensor&) override { at(before_backward, run.batch_idx() == 4); }
  void on_after_backward(RunContext& run) override { at(after_backward, run.batch_idx() == 4); }
  void on_before_optimizer_step(RunContext& run, Optimizer&) override { at(before_step, run.batch_idx() == 5); }
  void on_validation_start(RunContext& run) override { at(validation_start, !run.sanity_checking()); }
  void on_validation_batch_start(RunContext& run, const Batch&, int64_t i, int64_t) override {
    at(validation_batch, !run.sanity_checking() && i == 1);
  }
  void on_validation_end(RunContext& run) override { at(validation_end, !run.sanity_checking()); }
  void on_train_epoch_end(RunContext&) override { at(epoch_end); }
  void on_checkpoint_published(RunContext&, const CheckpointInfo&) override { at(save); }
};

struct Result {
  FitReport report;
  std::map<std::string, Tensor> weights;
  std::vector<std::pair<int64_t, double>> validations;
  std::string rows;  ///< of the metrics' file
};

struct Module : SelfPlanned {
  Module() : SelfPlanned(0.3) {}
  Outputs validation_step(const Batch& batch, int64_t index, int64_t loader) override {
    log("val_index", static_cast<double>(index), {.on_step = true, .on_epoch = false});
    return SelfPlanned::validation_step(batch, index, loader);
  }
};

Result fit(const TemporaryFolder& folder, int place, const CheckpointChoice& from) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = 3;
  options.val_check_interval = 5;
  options.num_sanity_val_steps = 1;
  options.log_every_n_steps = 2;
  TrainerComponents components;
  components.seed = 5;
  auto terminating = std::make_shared<Terminating>();
  terminating->place = place;
  components.add(terminating);
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 2;
  saving.save_top_k = -1;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  auto logger = std::make_shared<MemoryLogger>();
  components.loggers = {logger, std::make_shared<JsonlLogger>()};
  at::manual_seed(3);
  auto module = std::make_shared<Module>();
  Result result;
  result.report = Trainer(options, components).fit(module, regression_data(), from);
  result.weights = weights(*module);
  result.validations = logger->values("val_loss");
  result.rows = read_text(result.report.run_dir / "metrics.jsonl");
  CHECK((place == nowhere || terminating->sent));
  return result;
}

}  // namespace

TEST_CASE(
    "F32 SIGTERM at any place: exit code 75, or 143 if nothing was learned, and the run continues to the same bits") {
  TemporaryFolder whole_folder;
  const Result whole = fit(whole_folder, nowhere, {});
  REQUIRE(whole.report.exit_code == ExitCode::ok);
  for (int place = sanity_check; place < place_count; ++place) {
    CAPTURE(place);
    TemporaryFolder folder;
    const Result first = fit(folder, place, "auto");
    const bool learned = place > first_batch;
    CHECK(first.report.exit_code == (learned ? ExitCode::preempted : ExitCode::terminated));
    CHECK(first.report.global_step < whole.report.global_step);
    if (learned) CHECK(verify_checkpoint(*first.report.last_checkpoint).ok());
    const Result second = fit(folder, nowhere, "auto");
    CHECK(second.report.exit_code == ExitCode::ok);
    CHECK(second.report.global_step == whole.report.global_step);
    CHECK(same_weights(whole.weights, second.weights));
    REQUIRE_FALSE(second.validations.empty());
    CHECK(second.validations.back() == whole.validations.back());
    CHECK(second.rows == whole.rows);
  }
}

}  // namespace preemption_test
