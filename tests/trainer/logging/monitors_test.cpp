// Misspelt monitors are errors before training begins, if the sanity check shows that they are.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/optim/reduce_lr_on_plateau.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"

namespace monitors_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Counting : BoringModule {
  std::string plateau;  // what a schedule monitors; empty: no schedule
  bool late = false;    // val_accuracy is logged from the second validation on
  int64_t batches = 0, validations = 0;
  OptimizerPlan configure_optimizers() override {
    const auto sgd = std::make_shared<SGD>(SGD::Options{.lr = 0.05});
    if (plateau.empty()) return sgd;
    return {sgd, SchedulerConfig{.scheduler = std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{}),
                                 .monitor = plateau}};
  }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    ++batches;
    return BoringModule::training_step(batch, i);
  }
  void on_validation_epoch_end() override {
    if (!late || validations++ > 0) log("val_accuracy", 0.5);
  }
};

std::shared_ptr<EarlyStopping> early_stopping(const std::string& monitor) {
  EarlyStopping::Options options;
  options.monitor = monitor;
  return std::make_shared<EarlyStopping>(options);
}

std::shared_ptr<ModelCheckpoint> model_checkpoint(const std::string& monitor) {
  ModelCheckpoint::Options options;
  options.monitor = monitor;
  return std::make_shared<ModelCheckpoint>(options);
}

void fit(const std::shared_ptr<Counting>& module, std::vector<std::shared_ptr<Callback>> callbacks,
         int64_t sanity_steps = 1, int64_t val_check_interval = 0) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.num_sanity_val_steps = sanity_steps;
  if (val_check_interval > 0) options.val_check_interval = val_check_interval;
  TrainerComponents components;
  components.callbacks = std::move(callbacks);
  Trainer(options, components).fit(module, regression_data());
}

}  // namespace

TEST_CASE("a mode that contradicts the name of its metric is a warning") {
  const auto module = std::make_shared<Counting>();
  const auto lines = [&](std::vector<std::shared_ptr<Callback>> callbacks) {
    std::string ignored;
    return shown_lines([&] { fit(module, std::move(callbacks)); }, &ignored);
  };
  const std::string wrong = lines({early_stopping("val_accuracy"), model_checkpoint("val_accuracy")});
  CHECK_THAT(wrong, ContainsSubstring("EarlyStopping: a large value of 'val_accuracy' is usually better, but mode is "
                                      "min: write mode: max [early_stopping.mode]"));
  CHECK_THAT(wrong, ContainsSubstring("[model_checkpoint.mode]"));
  CHECK_THAT(lines({early_stopping("val_loss"), model_checkpoint("val_loss")}), !ContainsSubstring(".mode]"));
  module->plateau = "val_accuracy";
  CHECK_THAT(lines({}), ContainsSubstring("the learning rate schedule: a large value of 'val_accuracy' is usually "
                                          "better, but mode is min: write mode: max [lr_scheduler.mode]"));
  module->plateau = "val_loss";
  CHECK_THAT(lines({}), !ContainsSubstring(".mode]"));
  for (const auto& [monitor, mode, is_doubtful] : {std::tuple{"val_acc", MonitorMode::min, true},
                                                   {"val_acc", MonitorMode::max, false},
                                                   {"val/AUROC", MonitorMode::min, true},
                                                   {"val_loss", MonitorMode::max, true},
                                                   {"f1_loss", MonitorMode::min, false},
                                                   {"f1_loss", MonitorMode::max, true},
                                                   {"accumulated", MonitorMode::min, false},
                                                   {"score", MonitorMode::min, false},
                                                   {"", MonitorMode::max, false},
                                                   {"R2", MonitorMode::min, true}}) {
    INFO(monitor);
    CHECK(fulgur::detail::doubtful_mode(monitor, mode).empty() != is_doubtful);
  }
}

TEST_CASE("a misspelt monitor is an error before the first batch, with the nearest name") {
  const auto module = std::make_shared<Counting>();
  const auto check = [&](std::vector<std::shared_ptr<Callback>> callbacks) {
    const std::string message = message_of<ConfigError>([&] { fit(module, std::move(callbacks)); });
    CHECK_THAT(message, ContainsSubstring("'val_los' was not logged") && ContainsSubstring("did you mean 'val_loss'?"));
    CHECK_THAT(message, !ContainsSubstring("?."));
    CHECK(module->batches == 0);
  };
  SECTION("of EarlyStopping") { check({early_stopping("val_los")}); }
  SECTION("of ModelCheckpoint") { check({model_checkpoint("val_los")}); }
  SECTION("of a plateau schedule") {
    module->plateau = "val_los";
    check({});
  }
}

TEST_CASE("a monitor that neither validation nor the first training batch logs is a warning after that batch") {
  const auto module = std::make_shared<Counting>();
  for (const int64_t sanity : {0, 1}) {
    CAPTURE(sanity);
    std::string error;
    const std::string lines = shown_lines(
        [&] {
          // They look at the end of the epoch, also where validation comes more often.
          fit(module,
              {std::make_shared<EarlyStopping>(
                   EarlyStopping::Options{.monitor = "accuracy", .check_on_train_epoch_end = true}),
               std::make_shared<ModelCheckpoint>(
                   ModelCheckpoint::Options{.monitor = "val_auc", .save_on_train_epoch_end = true}),
               model_checkpoint("train_loss")},
              sanity, sanity == 0 ? 3 : 0);
        },
        &error);
    CHECK_THAT(error, ContainsSubstring("'accuracy' was not logged"));
    CHECK_THAT(lines, ContainsSubstring("EarlyStopping monitors 'accuracy'") &&
                          ContainsSubstring("ModelCheckpoint monitors 'val_auc'") &&
                          ContainsSubstring(
                              "neither validation nor the first training batch has logged it; the logged metrics are: "
                              "train_loss, val_accuracy, val_loss. "));
    CHECK_THAT(lines, !ContainsSubstring("monitors 'train_loss'"));
  }
}

TEST_CASE("without a sanity check a misspelt monitor is found after the first validation") {
  const auto module = std::make_shared<Counting>();
  const auto check = [&](std::vector<std::shared_ptr<Callback>> callbacks) {
    const std::string message = message_of<ConfigError>([&] { fit(module, std::move(callbacks), 0, 3); });
    CHECK_THAT(message, ContainsSubstring("'val_los' was not logged") && ContainsSubstring("did you mean 'val_loss'?"));
    CHECK(module->batches == 3);
  };
  SECTION("of EarlyStopping") { check({early_stopping("val_los")}); }
  SECTION("of ModelCheckpoint") { check({model_checkpoint("val_los")}); }
  SECTION("of a plateau schedule") {
    module->plateau = "val_los";
    check({});
  }
}

TEST_CASE("a monitor that is logged later, or by training, is not an error") {
  const auto module = std::make_shared<Counting>();
  SECTION("by training") {
    module->plateau = "train_loss";
    CHECK_NOTHROW(fit(module, {early_stopping("train_loss"), model_checkpoint("train_loss")}));
  }
  SECTION("from the second validation on") {
    module->late = true;
    CHECK_NOTHROW(fit(module, {early_stopping("val_accuracy"), model_checkpoint("val_accuracy")}));
  }
  CHECK(module->batches == 20);
}

TEST_CASE("a monitor of ModelCheckpoint that nothing has logged when it saves is an error, as in Lightning") {
  const auto module = std::make_shared<Counting>();
  const std::string message = message_of<ConfigError>([&] { fit(module, {model_checkpoint("accuracy")}); });
  CHECK_THAT(message, ContainsSubstring(
                          "[callbacks.ModelCheckpoint] monitor 'accuracy' was not logged; the logged metrics are: "));
  CHECK(module->batches == 10);
}

TEST_CASE("a missing monitor of ModelCheckpoint that saves after validations is an error at the first epoch's end") {
  struct Watching : Callback {
    int64_t validations = -1;
    void on_validation_end(RunContext& run) override {
      if (validations < 0 && !run.sanity_checking()) validations = run.progress().validations;
    }
  };
  const auto module = std::make_shared<Counting>();
  const auto watching = std::make_shared<Watching>();
  const auto saving = std::make_shared<ModelCheckpoint>(
      ModelCheckpoint::Options{.monitor = "accuracy", .save_on_train_epoch_end = false});
  std::string error;
  const std::string lines = shown_lines([&] { fit(module, {watching, saving}); }, &error);
  CHECK_THAT(error, ContainsSubstring("monitor 'accuracy' was not logged"));
  CHECK(module->batches == 10);
  // In the hooks of its end, the first validation counts.
  CHECK(watching->validations == 1);
  CHECK_THAT(lines, ContainsSubstring("model_checkpoint.monitor_missing"));
  CHECK_THAT(lines, !ContainsSubstring("No validation has run yet"));
}

TEST_CASE("without validation a missing monitor of ModelCheckpoint is a warning") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.limit_val_batches = 0;
  TrainerComponents components;
  components.callbacks = {model_checkpoint("accuracy")};
  const auto module = std::make_shared<Counting>();
  const std::string lines = shown_lines([&] { Trainer(options, components).fit(module, regression_data()); });
  CHECK_THAT(lines, ContainsSubstring("may end then, or keep no best checkpoint"));
  CHECK(module->batches == 20);
}

TEST_CASE(
    "a run that ends because a metric is missing leaves what was trained, and a corrected run continues from it") {
  struct Case {
    const char* what;
    std::function<std::shared_ptr<Callback>(const std::string&)> callback;  // by the monitor
    int64_t val_check_interval, saved_step;
  };
  const std::vector<Case> cases{
      {"EarlyStopping at an epoch's end",
       [](const std::string& monitor) {
         return std::make_shared<EarlyStopping>(
             EarlyStopping::Options{.monitor = monitor, .patience = 9, .check_on_train_epoch_end = true});
       },
       0, 10},
      {"EarlyStopping inside an epoch",
       [](const std::string& monitor) {
         return std::make_shared<EarlyStopping>(
             EarlyStopping::Options{.monitor = monitor, .patience = 9, .check_on_train_epoch_end = false});
       },
       5, 5},
      {"ModelCheckpoint", [](const std::string& monitor) { return model_checkpoint(monitor); }, 0, 10},
      {"a plateau schedule", {}, 0, 10}};
  for (const Case& each : cases) {
    CAPTURE(each.what);
    const auto train = [&](const TemporaryFolder& folder, const std::string& monitor, const CheckpointChoice& from) {
      TrainerOptions options = quiet(folder);
      options.max_epochs = 2;
      if (each.val_check_interval > 0) options.val_check_interval = each.val_check_interval;
      TrainerComponents components;
      components.seed = 5;
      if (each.callback) components.add(each.callback(monitor));
      components.loggers = {std::make_shared<CsvLogger>()};
      at::manual_seed(3);
      const auto module = std::make_shared<Counting>();
      if (!each.callback) module->plateau = monitor;
      Trainer(options, components).fit(module, regression_data(), from);
      return weights(*module);
    };
    const TemporaryFolder folder, quiet_folder;
    const auto whole = train(quiet_folder, "val_loss", {});
    const std::string message = message_of<MonitorError>([&] { train(folder, "accuracy", {}); });
    const auto run = folder / "fulgur_logs/version_0";
    const auto saved = run / "checkpoints" / cat("epoch=0-step=", each.saved_step, ".ckpt");
    CHECK_THAT(message, ContainsSubstring("monitor 'accuracy' was not logged") &&
                            ContainsSubstring(cat("What was trained until then is saved in ", saved)));
    CHECK(std::filesystem::exists(saved / "state.json"));
    CHECK(same_weights(train(folder, "val_loss", "auto"), whole));
    CHECK(read_text(run / "metrics.csv") == read_text(quiet_folder / "fulgur_logs/version_0/metrics.csv"));
  }
}

TEST_CASE("before the first step a missing metric leaves no checkpoint") {
  const std::string message =
      message_of<MonitorError>([&] { fit(std::make_shared<Counting>(), {early_stopping("val_los")}); });
  CHECK_THAT(message, !ContainsSubstring("is saved in"));
}

TEST_CASE("what counts as a misspelt name of a metric of validation") {
  const std::vector<std::string> names{"val_loss", "val_acc", "val/f1"};
  for (const char* wrong : {"val_los", "val_losss", "val_lsos", "val_ac", "val_cac", "val/f1x"}) {
    INFO(wrong);
    CHECK(misspells_validation_metric(wrong, names));
  }
  for (const char* other :
       {"val_loss", "val_auc", "val/f2", "val/f11", "val_loss_2", "train_loss", "loss", "val", "va_loss"}) {
    INFO(other);
    CHECK_FALSE(misspells_validation_metric(other, names));
  }
}

}  // namespace monitors_test
