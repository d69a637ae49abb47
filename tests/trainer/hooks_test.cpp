// The order of hooks is a contract: the whole list of calls is compared.
#include "boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text.h"

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Calls = std::vector<std::string>;

#define FULGUR_RECORD0(hook) \
  void hook(RunContext&) override { calls.push_back("c." #hook); }

struct Recorder : Callback {
  Calls& calls;
  explicit Recorder(Calls& list) : calls(list) {}
  void setup(RunContext&, Verb verb) override { calls.push_back(cat("c.setup(", name_of(verb), ")")); }
  void teardown(RunContext&, Verb) override { calls.push_back("c.teardown"); }
  void on_exception(RunContext&, const std::exception&) override { calls.push_back("c.on_exception"); }
  FULGUR_RECORD0(on_fit_start)
  FULGUR_RECORD0(on_fit_end)
  FULGUR_RECORD0(on_sanity_check_start)
  FULGUR_RECORD0(on_sanity_check_end)
  FULGUR_RECORD0(on_train_start)
  FULGUR_RECORD0(on_train_end)
  FULGUR_RECORD0(on_train_epoch_start)
  FULGUR_RECORD0(on_train_epoch_end)
  FULGUR_RECORD0(on_validation_start)
  FULGUR_RECORD0(on_validation_end)
  FULGUR_RECORD0(on_validation_epoch_start)
  FULGUR_RECORD0(on_validation_epoch_end)
  void on_train_batch_start(RunContext&, const Batch&, int64_t i) override { calls.push_back(cat("c.on_train_batch_start ", i)); }
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t i) override { calls.push_back(cat("c.on_train_batch_end ", i)); }
  void on_before_zero_grad(RunContext&, Optimizer&) override { calls.push_back("c.on_before_zero_grad"); }
  void on_before_backward(RunContext&, const Tensor&) override { calls.push_back("c.on_before_backward"); }
  void on_after_backward(RunContext&) override { calls.push_back("c.on_after_backward"); }
  void on_before_optimizer_step(RunContext&, Optimizer&) override { calls.push_back("c.on_before_optimizer_step"); }
  void on_validation_batch_start(RunContext&, const Batch&, int64_t i, int64_t) override { calls.push_back(cat("c.on_validation_batch_start ", i)); }
  void on_validation_batch_end(RunContext&, const Outputs&, const Batch&, int64_t i, int64_t) override { calls.push_back(cat("c.on_validation_batch_end ", i)); }
};

struct RecordingModule : SelfPlanned {
  Calls& calls;
  explicit RecordingModule(Calls& list) : calls(list) {}
  void prepare_data() override { calls.push_back("prepare_data"); }
  void setup(Verb) override { calls.push_back("setup"); }
  void teardown(Verb) override { calls.push_back("teardown"); }
  void configure_model() override { calls.push_back("configure_model"); }
  OptimizerPlan configure_optimizers() override {
    calls.push_back("configure_optimizers");
    return SelfPlanned::configure_optimizers();
  }
  void on_fit_start() override { calls.push_back("on_fit_start"); }
  void on_fit_end() override { calls.push_back("on_fit_end"); }
  void on_train_start() override { calls.push_back("on_train_start"); }
  void on_train_end() override { calls.push_back("on_train_end"); }
  void on_train_epoch_start() override { calls.push_back("on_train_epoch_start"); }
  void on_train_epoch_end() override { calls.push_back("on_train_epoch_end"); }
  int on_train_batch_start(const Batch&, int64_t i) override {
    calls.push_back(cat("on_train_batch_start ", i));
    return 0;
  }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    calls.push_back(cat("training_step ", i));
    return SelfPlanned::training_step(batch, i);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override { calls.push_back(cat("on_train_batch_end ", i)); }
  Batch on_before_batch_transfer(Batch b, int64_t) override {
    calls.push_back("on_before_batch_transfer");
    return b;
  }
  Batch transfer_batch_to_device(Batch b, const at::Device&, int64_t) override {
    calls.push_back("transfer_batch_to_device");
    return b;
  }
  Batch on_after_batch_transfer(Batch b, int64_t) override {
    calls.push_back("on_after_batch_transfer");
    return b;
  }
  void on_before_zero_grad(Optimizer&) override { calls.push_back("on_before_zero_grad"); }
  void on_before_backward(const Tensor&) override { calls.push_back("on_before_backward"); }
  void on_after_backward() override { calls.push_back("on_after_backward"); }
  void on_before_optimizer_step(Optimizer&) override { calls.push_back("on_before_optimizer_step"); }
  void configure_gradient_clipping(Optimizer&, std::optional<double>, ClipAlgorithm) override { calls.push_back("configure_gradient_clipping"); }
  void on_validation_model_zero_grad() override { calls.push_back("on_validation_model_zero_grad"); }
  void on_validation_model_eval() override { calls.push_back("on_validation_model_eval"); }
  void on_validation_model_train() override { calls.push_back("on_validation_model_train"); }
  void on_validation_start() override { calls.push_back("on_validation_start"); }
  void on_validation_end() override { calls.push_back("on_validation_end"); }
  void on_validation_epoch_start() override { calls.push_back("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { calls.push_back("on_validation_epoch_end"); }
  Outputs validation_step(const Batch& b, int64_t i, int64_t) override {
    calls.push_back(cat("validation_step ", i));
    return SelfPlanned::validation_step(b, i, 0);
  }
  void on_validation_batch_start(const Batch&, int64_t i, int64_t) override { calls.push_back(cat("on_validation_batch_start ", i)); }
  void on_validation_batch_end(const Outputs&, const Batch&, int64_t i, int64_t) override { calls.push_back(cat("on_validation_batch_end ", i)); }
  void on_save_checkpoint(StateTree&) override { calls.push_back("on_save_checkpoint"); }
};

// Callbacks come before the module.
Calls both(std::initializer_list<std::string> hooks) {
  Calls out;
  for (const std::string& hook : hooks) {
    out.push_back("c." + hook);
    out.push_back(hook);
  }
  return out;
}

void append(Calls& to, const Calls& more) { to.insert(to.end(), more.begin(), more.end()); }

Calls transfer() { return {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"}; }

Calls train_batch(int64_t i, bool steps) {
  Calls out = transfer();
  append(out, both({cat("on_train_batch_start ", i)}));
  out.push_back(cat("training_step ", i));
  append(out, both({"on_before_backward", "on_after_backward"}));
  if (steps) {
    append(out, both({"on_before_optimizer_step"}));
    out.push_back("configure_gradient_clipping");
    append(out, both({"on_before_zero_grad"}));
  }
  append(out, both({cat("on_train_batch_end ", i)}));
  return out;
}

Calls validation(int64_t batches) {
  Calls out{"on_validation_model_zero_grad", "on_validation_model_eval"};
  append(out, both({"on_validation_start", "on_validation_epoch_start"}));
  for (int64_t i = 0; i < batches; ++i) {
    append(out, transfer());
    append(out, both({cat("on_validation_batch_start ", i)}));
    out.push_back(cat("validation_step ", i));
    append(out, both({cat("on_validation_batch_end ", i)}));
  }
  append(out, both({"on_validation_epoch_end", "on_validation_end"}));
  out.push_back("on_validation_model_train");
  return out;
}

Calls record(const TemporaryFolder& folder, TrainerOptions options, std::shared_ptr<DataModule> data) {
  Calls calls;
  Parts parts;
  parts.callbacks = {std::make_shared<Recorder>(calls)};
  options.default_root_dir = folder.path();
  Trainer(options, parts).fit(std::make_shared<RecordingModule>(calls), data);
  return calls;
}

}  // namespace

TEST_CASE("hooks of a fit, in order: sanity check, accumulation with a short window, validation in mid-epoch") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.num_sanity_val_steps = 1;
  options.accumulate_grad_batches = 3;
  options.val_check_interval = 2;
  const Calls calls = record(folder, options, regression_data(16, 8, 4, false));  // 4 training batches, 2 for validation

  Calls expected{"c.setup(fit)", "setup", "configure_model", "configure_optimizers"};
  append(expected, both({"on_fit_start"}));
  expected.push_back("c.on_sanity_check_start");
  append(expected, validation(1));
  expected.push_back("c.on_sanity_check_end");
  append(expected, both({"on_train_start", "on_train_epoch_start"}));
  append(expected, train_batch(0, false));
  append(expected, train_batch(1, false));
  append(expected, validation(2));
  expected.push_back("on_save_checkpoint");
  append(expected, train_batch(2, true));
  append(expected, train_batch(3, true));  // the last, shorter window is stepped
  append(expected, validation(2));
  append(expected, both({"on_train_epoch_end"}));
  expected.push_back("on_save_checkpoint");
  append(expected, both({"on_train_end", "on_fit_end"}));
  expected.push_back("c.teardown");
  expected.push_back("teardown");
  CHECK(calls == expected);
}

TEST_CASE("hooks after an exception: callbacks are told, everything is torn down, the error goes on") {
  struct Failing : RecordingModule {
    using RecordingModule::RecordingModule;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == 1) throw std::runtime_error("broken on purpose");
      return RecordingModule::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  Calls calls;
  Parts parts;
  auto logger = std::make_shared<MemoryLogger>();
  parts.callbacks = {std::make_shared<Recorder>(calls)};
  parts.loggers = {logger};
  auto module = std::make_shared<Failing>(calls);
  CHECK_THROWS_WITH(Trainer(quiet(folder), parts).fit(module, regression_data(16, 0)), ContainsSubstring("broken on purpose"));
  REQUIRE(calls.size() > 3);
  CHECK(Calls(calls.end() - 3, calls.end()) == Calls{"c.on_exception", "c.teardown", "teardown"});
  CHECK(logger->status == RunStatus::failed);
  CHECK_FALSE(module->in_run());
}

TEST_CASE("returning -1 from on_train_batch_start skips the rest of the epoch, an open window is stepped") {
  struct Skipping : SelfPlanned {
    int64_t steps = 0;
    int on_train_batch_start(const Batch&, int64_t i) override { return i == 4 ? -1 : 0; }
    StepOutput training_step(const Batch& batch, int64_t i) override {
      ++steps;
      return SelfPlanned::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = 3;
  auto module = std::make_shared<Skipping>();
  const FitReport report = Trainer(options).fit(module, regression_data(40, 0));
  CHECK(module->steps == 8);
  CHECK(report.global_step == 4);  // windows of 3 and 1, twice
  CHECK(report.epochs == 2);
}

TEST_CASE("an undefined loss skips the step's backward") {
  struct Empty : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i % 2 == 0) return {};
      return SelfPlanned::training_step(batch, i);
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Empty>();
  const auto before = weights(*module);
  Trainer(quiet(folder)).fit(module, regression_data(8, 0));
  CHECK_FALSE(same_weights(before, weights(*module)));
}

TEST_CASE("a Trainer refuses to run inside its own run") {
  struct Reentering : SelfPlanned {
    Trainer* trainer = nullptr;
    std::string message;
    void on_train_start() override {
      try {
        trainer->test(std::make_shared<SelfPlanned>(), regression_data());
      } catch (const Error& error) {
        message = error.what();
      }
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Reentering>();
  Trainer trainer(quiet(folder));
  module->trainer = &trainer;
  trainer.fit(module, regression_data(8, 0));
  CHECK_THAT(module->message, ContainsSubstring("a run is under way"));
}
