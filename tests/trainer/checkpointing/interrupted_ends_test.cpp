// Interruptions at the ends of steps, windows, epochs and fits: seeds of the differential tests found these.
#include "trainer/checkpointing/interrupted.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/optim/lbfgs.h"

namespace interrupted_ends_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::test::interrupted;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

/// Calls a function at each hook of a step.
struct AtHooks : Callback {
  std::function<void(RunContext&)> train_start = {}, before_step = {}, before_zero_grad = {}, batch_end = {},
                                   epoch_end = {}, validation_batch = {}, train_end = {};
  void on_train_start(RunContext& run) override { call(train_start, run); }
  void on_train_end(RunContext& run) override { call(train_end, run); }
  void on_before_optimizer_step(RunContext& run, Optimizer&) override { call(before_step, run); }
  void on_before_zero_grad(RunContext& run, Optimizer&) override { call(before_zero_grad, run); }
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override { call(batch_end, run); }
  void on_train_epoch_end(RunContext& run) override { call(epoch_end, run); }
  void on_validation_batch_end(RunContext& run, const Outputs&, const Batch&, int64_t, int64_t) override {
    call(validation_batch, run);
  }
  static void call(const std::function<void(RunContext&)>& hook, RunContext& run) {
    if (hook) hook(run);
  }
};

ModelCheckpoint::Options on_exception() {
  ModelCheckpoint::Options options;
  options.save_on_exception = true;
  options.every_n_epochs = 100;
  return options;
}

auto with(std::shared_ptr<AtHooks> hooks, std::function<void(TrainerOptions&)> change = {}) {
  return [=](TrainerOptions& options, TrainerComponents& components) {
    if (hooks) components.add(hooks);
    components.loggers = {std::make_shared<CsvLogger>()};
    if (change) change(options);
  };
}

std::string rows(const TemporaryFolder& folder) { return read_text(folder / "fulgur_logs/version_0/metrics.csv"); }

std::set<std::string> checkpoints(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "fulgur_logs/version_0/checkpoints"))
    names.insert(entry.path().filename().string());
  return names;
}

template <class Module, class... Arguments>
std::shared_ptr<Module> seeded(Arguments... arguments) {
  at::manual_seed(3);
  return std::make_shared<Module>(arguments...);
}

struct ByLbfgs : BoringModule {
  OptimizerPlan configure_optimizers() override {
    LBFGS::Options options;
    options.lr = 0.1;
    options.max_iter = 3;
    return std::make_shared<LBFGS>(options);
  }
};

}  // namespace

TEST_CASE("an exception after the step that ends the hold-up of a stop: the resumed run validates before it stops") {
  // A stop is requested in the second batch and held up by min_steps until the fourth, which has no validation.
  const auto requested = std::make_shared<AtHooks>();
  requested->batch_end = [](RunContext& run) {
    if (run.progress().global_step == 2) run.request_stop("enough");
  };
  const auto held_up = [](TrainerOptions& options) { options.min_steps = 4; };
  const auto validations = [](const TemporaryFolder& folder) {
    const std::string text = rows(folder);
    const std::string header = text.substr(0, text.find('\n'));
    CHECK_THAT(header, ContainsSubstring("val_loss"));
    return text;
  };
  const TemporaryFolder quiet_folder;
  const FitReport quiet_report = fit(quiet_folder, {.change = with(requested, held_up)});
  CHECK(quiet_report.global_step == 4);
  const std::string expected = validations(quiet_folder);

  const TemporaryFolder folder;
  const auto failing = std::make_shared<AtHooks>(*requested);
  failing->batch_end = [ask = requested->batch_end](RunContext& run) {
    ask(run);
    if (run.progress().global_step == 4) throw Killed();
  };
  fit(folder, {.saving = on_exception(), .change = with(failing, held_up)});
  const FitReport resumed = fit(folder, {.from = "auto", .saving = on_exception(), .change = with(requested, held_up)});
  CHECK(resumed.global_step == 4);
  CHECK(validations(folder) == expected);
}

TEST_CASE("a batch whose step by closure fails before the weights change is repeated; after that nothing is saved") {
  const TemporaryFolder quiet_folder;
  const auto once = [](TrainerOptions& options) { options.max_epochs = 1; };
  const auto whole = seeded<ByLbfgs>();
  fit(quiet_folder, {.change = with(nullptr, once), .module = whole});
  for (const int64_t evaluation : {1, 2}) {
    CAPTURE(evaluation);
    const TemporaryFolder folder;
    const auto failing = std::make_shared<AtHooks>();
    failing->before_step = [=, count = int64_t{0}](RunContext& run) mutable {
      if (run.progress().global_step == 4 && ++count == evaluation) throw Killed();
    };
    std::string told;
    fit(folder, {.saving = on_exception(), .change = with(failing, once), .module = seeded<ByLbfgs>()}, &told);
    if (evaluation > 1) {
      CHECK_THAT(told, ContainsSubstring("no checkpoint is written: the optimizer's step failed"));
      CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_0/checkpoints/last.ckpt"));
      continue;
    }
    const auto resumed = seeded<ByLbfgs>();
    const FitReport report =
        fit(folder, {.from = "auto", .saving = on_exception(), .change = with(nullptr, once), .module = resumed});
    CHECK(report.global_step == 10);
    CHECK(same_weights(weights(*resumed), weights(*whole)));
    CHECK(rows(folder) == rows(quiet_folder));
  }
}

TEST_CASE("an optimizer that fails in its step leaves no checkpoint of weights that changed in part") {
  struct Failing : Precision {
    std::string name() const override { return "failing"; }
    void convert_module(torch::nn::Module&) override {}
    void convert_input(Batch&) override {}
    void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) override {
      optimizer.step(found_inf);
      if (++steps == 5) throw Killed();
    }
    int64_t steps = 0;
  };
  const TemporaryFolder folder;
  std::string told;
  fit(folder,
      {.saving = on_exception(),
       .change = [](auto&, TrainerComponents& components) { components.precision = std::make_shared<Failing>(); }},
      &told);
  CHECK_THAT(told, ContainsSubstring("no checkpoint is written: the optimizer's step failed"));
  CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_0/checkpoints/last.ckpt"));
}

TEST_CASE("in manual optimization a batch that fails after a step counts as a step") {
  struct Manual : SelfPlanned {
    bool fails = false;
    bool automatic_optimization() const override { return false; }
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      const StepOutput output = SelfPlanned::training_step(batch, batch_idx);
      manual_backward(output.loss);
      optimizers(0).step();
      optimizers(0).zero_grad();
      if (fails && batch_idx == 3) throw Killed();
      return output;
    }
  };
  const auto once = [](TrainerOptions& options) { options.max_epochs = 1; };
  const TemporaryFolder folder, quiet_folder;
  const auto whole = seeded<Manual>(), failing = seeded<Manual>(), resumed = seeded<Manual>();
  failing->fails = true;
  fit(quiet_folder, {.change = with(nullptr, once), .module = whole});
  fit(folder, {.saving = on_exception(), .change = with(nullptr, once), .module = failing});
  const FitReport report =
      fit(folder, {.from = "auto", .saving = on_exception(), .change = with(nullptr, once), .module = resumed});
  CHECK(report.global_step == 10);
  CHECK(same_weights(weights(*resumed), weights(*whole)));
}

TEST_CASE("a batch that fails after its step counts once in the samples and tokens of the resumed run") {
  struct Counting : SelfPlanned {
    std::optional<int64_t> num_tokens(const Batch& batch) const override { return 3 * batch.size(); }
  };
  struct Counts {
    Progress at_start, at_end;
  };
  const auto noting = [](Counts& counts) {
    auto hooks = std::make_shared<AtHooks>();
    hooks->train_start = [&](RunContext& run) { counts.at_start = run.progress(); };
    hooks->train_end = [&](RunContext& run) { counts.at_end = run.progress(); };
    return hooks;
  };
  for (const int64_t accumulation : {1, 2}) {
    const auto windows = [=](TrainerOptions& options) {
      options.max_epochs = 2;
      options.accumulate_grad_batches = accumulation;
    };
    Counts quiet;
    const TemporaryFolder quiet_folder;
    fit(quiet_folder, {.change = with(noting(quiet), windows), .module = seeded<Counting>()});
    for (const bool at_zero_grad : {true, false}) {
      CAPTURE(accumulation, at_zero_grad);
      const TemporaryFolder folder;
      const auto failing = std::make_shared<AtHooks>();
      (at_zero_grad ? failing->before_zero_grad : failing->batch_end) = [](RunContext& run) {
        if (run.progress().global_step == 4) throw Killed();
      };
      fit(folder, {.saving = on_exception(), .change = with(failing, windows), .module = seeded<Counting>()});
      Counts resumed;
      fit(folder, {.from = "auto",
                   .saving = on_exception(),
                   .change = with(noting(resumed), windows),
                   .module = seeded<Counting>()});
      // Four steps of batches that have four samples each.
      CHECK(resumed.at_start.batches_total.completed == 4 * accumulation);
      CHECK(resumed.at_start.samples_seen == 16 * accumulation);
      CHECK(resumed.at_start.tokens_seen == 48 * accumulation);
      CHECK(resumed.at_end.samples_seen == quiet.at_end.samples_seen);
      CHECK(resumed.at_end.tokens_seen == quiet.at_end.tokens_seen);
      CHECK(resumed.at_end.batches_total.completed == quiet.at_end.batches_total.completed);
      CHECK(resumed.at_end.global_step == quiet.at_end.global_step);
    }
    CHECK(quiet.at_end.samples_seen == 80);
    CHECK(quiet.at_end.tokens_seen == 240);
  }
}

TEST_CASE("a window that the end of a stream closes is closed once, also after an exception in its step") {
  struct Streams : DataModule {
    Loaders train_dataloader() override { return {regression_stream(16)}; }
  };
  const auto windows = [](TrainerOptions& options) {
    options.max_epochs = 3;
    options.accumulate_grad_batches = 3;
    options.log_grad_norm = true;
  };
  const TemporaryFolder folder, quiet_folder;
  const auto whole = seeded<SelfPlanned>(0.3), resumed = seeded<SelfPlanned>(0.3);
  fit(quiet_folder, {.change = with(nullptr, windows), .module = whole, .data = std::make_shared<Streams>()});
  const auto failing = std::make_shared<AtHooks>();
  failing->before_step = [](RunContext& run) {
    if (run.progress().global_step == 3) throw Killed();  // the second window of the second epoch: one batch
  };
  fit(folder, {.saving = on_exception(), .change = with(failing, windows), .data = std::make_shared<Streams>()});
  fit(folder, {.from = "auto",
               .saving = on_exception(),
               .change = with(nullptr, windows),
               .module = resumed,
               .data = std::make_shared<Streams>()});
  CHECK(same_weights(weights(*resumed), weights(*whole)));
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("a stop and a signal in an epoch's last batch leave the validation before the epoch's end") {
  const auto stopping = [](bool by_signal) {
    auto hooks = std::make_shared<AtHooks>();
    hooks->batch_end = [=](RunContext& run) {
      if (run.progress().global_step != 20) return;
      run.request_stop("enough");
      if (by_signal) std::raise(SIGTERM);
    };
    return hooks;
  };
  const auto rare = [](TrainerOptions& options) { options.val_check_interval = Interval{35, Interval::Unit::steps}; };
  const TemporaryFolder folder, quiet_folder;
  fit(quiet_folder, {.change = with(stopping(false), rare)});
  CHECK(fit(folder, {.change = with(stopping(true), rare)}).stop_reason == "signal 15");
  CHECK(fit(folder, {.from = "auto", .change = with(nullptr, rare)}).stop_reason == "enough");
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("an epoch whose rest is skipped has no validation, also after an exception at its end") {
  struct Skipping : SelfPlanned {
    Skipping() : SelfPlanned(0.3) {}
    int on_train_batch_start(const Batch&, int64_t batch_idx) override {
      return run().progress().epoch == 1 && batch_idx == 4 ? -1 : 0;
    }
  };
  const auto failing = std::make_shared<AtHooks>();
  failing->epoch_end = [](RunContext& run) {
    if (run.progress().epoch == 1) throw Killed();
  };
  const TemporaryFolder folder, quiet_folder;
  fit(quiet_folder, {.change = with(nullptr), .module = seeded<Skipping>()});
  fit(folder, {.saving = on_exception(), .change = with(failing), .module = seeded<Skipping>()});
  fit(folder, {.from = "auto", .saving = on_exception(), .change = with(nullptr), .module = seeded<Skipping>()});
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("a signal while a callback has exchanged the weights for a validation saves the run's own weights") {
  // Weight averaging, in short.
  struct Averaging : Callback {
    std::vector<Tensor> average, own;
    int64_t validated = 0;
    int raise_in = -1;  // batch of the third validation
    StateTree state() const override {
      return StateTree::map({{"average", StateTree::List(average.begin(), average.end())}});
    }
    void load_state(const StateTree& state) override {
      average.clear();
      for (const auto& item : state.at("average").as_list()) average.push_back(item.tensor().clone());
    }
    static std::vector<Tensor> parameters(RunContext& run) {
      std::vector<Tensor> all;
      for (const Tensor& parameter : run.module().parameters()) all.push_back(parameter.detach());
      return all;
    }
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      const std::vector<Tensor> now = parameters(run);
      for (size_t i = 0; i < now.size(); ++i) {
        if (average.size() == i) average.push_back(now[i].clone());
        average[i].mul_(0.5).add_(now[i], 0.5);
      }
    }
    void exchange(RunContext& run, std::vector<Tensor>& with) {
      const at::NoGradGuard no_gradients;
      const std::vector<Tensor> now = parameters(run);
      for (size_t i = 0; i < now.size(); ++i) now[i].copy_(with[i]);
    }
    void on_validation_start(RunContext& run) override {
      if (run.sanity_checking()) return;
      own.clear();
      for (const Tensor& value : parameters(run)) own.push_back(value.clone());
      exchange(run, average);
      ++validated;
    }
    void on_validation_batch_end(RunContext&, const Outputs&, const Batch&, int64_t batch_idx, int64_t) override {
      if (validated == 3 && batch_idx == raise_in) std::raise(SIGTERM);
    }
    void on_validation_end(RunContext& run) override {
      if (!run.sanity_checking()) exchange(run, own);
    }
  };
  const auto often = [](TrainerOptions& options) { options.val_check_interval = 2; };
  const auto averaging = [&](int raise_in, const std::shared_ptr<AtHooks>& hooks = nullptr) {
    const auto callback = std::make_shared<Averaging>();
    callback->raise_in = raise_in;
    return [=](TrainerOptions& options, TrainerComponents& components) {
      components.add(callback);
      with(hooks, often)(options, components);
    };
  };
  const TemporaryFolder quiet_folder;
  const auto whole = seeded<SelfPlanned>(0.3);
  fit(quiet_folder, {.change = averaging(-1), .module = whole});
  const auto check = [&](std::function<void(TrainerOptions&, TrainerComponents&)> change) {
    const TemporaryFolder folder;
    CHECK(fit(folder, {.change = std::move(change), .module = seeded<SelfPlanned>(0.3)}).stop_reason == "signal 15");
    const auto resumed = seeded<SelfPlanned>(0.3);
    fit(folder, {.from = "auto", .change = averaging(-1), .module = resumed});
    CHECK(same_weights(weights(*resumed), weights(*whole)));
    CHECK(rows(folder) == rows(quiet_folder));
  };
  SECTION("before the validation") {
    for (const int64_t step : {14, 20}) {
      CAPTURE(step);
      const auto stopping = std::make_shared<AtHooks>();
      stopping->batch_end = [=](RunContext& run) {
        if (run.progress().global_step == step) std::raise(SIGTERM);
      };
      check(averaging(-1, stopping));
    }
  }
  SECTION("in the validation") {
    for (const int batch : {0, 1}) {
      CAPTURE(batch);
      check(averaging(batch));
    }
  }
}

TEST_CASE("an exception while a callback has swapped the weights for a validation saves the run's own weights") {
  // Its state contains the run's own weights during a validation.
  struct Swapping : Callback {
    std::vector<Tensor> others;
    int64_t validated = 0;
    bool swapped = false, fails = false;
    StateTree state() const override {
      return StateTree::map({{"others", StateTree::List(others.begin(), others.end())}, {"validated", validated}});
    }
    void load_state(const StateTree& state) override {
      others.clear();
      for (const auto& item : state.at("others").as_list()) others.push_back(item.tensor().clone());
      validated = state.at("validated").as_int();
    }
    void swap(RunContext& run) {
      const at::NoGradGuard no_gradients;
      size_t place = 0;
      for (const Tensor& parameter : run.module().parameters()) {
        if (others.size() == place) others.push_back(parameter.detach() * 0.5);
        const Tensor own = parameter.detach().clone();
        parameter.detach().copy_(others[place]);
        others[place++].copy_(own);
      }
      swapped = !swapped;
    }
    void on_validation_start(RunContext& run) override {
      if (run.sanity_checking()) return;
      swap(run);
      ++validated;
    }
    void on_validation_batch_end(RunContext&, const Outputs&, const Batch&, int64_t batch_idx, int64_t) override {
      if (fails && validated == 3 && batch_idx == 1) throw Error("on purpose");
    }
    void on_validation_end(RunContext& run) override {
      if (!run.sanity_checking()) swap(run);
    }
    void on_exception(RunContext& run, const std::exception&) override {
      if (swapped) swap(run);
    }
  };
  const auto swapping = [](bool fails) {
    const auto callback = std::make_shared<Swapping>();
    callback->fails = fails;
    return [=](TrainerOptions& options, TrainerComponents& components) {
      components.add(callback);
      with(nullptr)(options, components);
    };
  };
  const TemporaryFolder quiet_folder, folder;
  const auto whole = seeded<SelfPlanned>(0.3), resumed = seeded<SelfPlanned>(0.3);
  fit(quiet_folder, {.saving = on_exception(), .change = swapping(false), .module = whole});
  CHECK_THROWS_AS(fit(folder, {.saving = on_exception(), .change = swapping(true), .module = seeded<SelfPlanned>(0.3)}),
                  Error);
  fit(folder, {.from = "auto", .saving = on_exception(), .change = swapping(false), .module = resumed});
  CHECK(same_weights(weights(*resumed), weights(*whole)));
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("a checkpoint that was requested before a signal is the last one of the fit") {
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 10;
  saving.save_top_k = 0;
  saving.filename = "own-{step}";
  const auto signalling = std::make_shared<AtHooks>();
  signalling->validation_batch = [](RunContext& run) {
    if (run.progress().global_step == 20) std::raise(SIGTERM);
  };
  const TemporaryFolder folder;
  const FitReport report = fit(folder, {.saving = saving, .change = with(signalling)});
  REQUIRE(report.last_checkpoint);
  CHECK(report.last_checkpoint->filename() == "own-step=20.ckpt");
  CHECK_FALSE(checkpoints(folder).contains("epoch=1-step=20.ckpt"));
}

TEST_CASE("a resume that trains nothing writes no further checkpoint, and its callbacks keep the one that is there") {
  const TemporaryFolder folder, quiet_folder;
  const auto whole = seeded<SelfPlanned>(0.3), resumed = seeded<SelfPlanned>(0.3);
  fit(quiet_folder, {.change = with(nullptr), .module = whole});
  REQUIRE(fit(folder, {.ends_at = 6, .change = with(nullptr)}).stop_reason == "signal 15");
  REQUIRE(checkpoints(folder) == std::set<std::string>{"epoch=0-step=7.ckpt", "last.ckpt"});
  const FitReport report = fit(folder, {.from = "auto", .change = with(nullptr, [](TrainerOptions& options) {
                                                          options.max_steps = 5;  // fewer than were made
                                                        })});
  CHECK(report.stop_reason == "max_steps");
  CHECK(report.global_step == 7);
  REQUIRE(report.best_checkpoint);
  CHECK(report.best_checkpoint->filename() == "epoch=0-step=7.ckpt");
  CHECK(checkpoints(folder) == std::set<std::string>{"epoch=0-step=7.ckpt", "last.ckpt", "best.ckpt"});
  fit(folder, {.from = "auto", .change = with(nullptr), .module = resumed});
  CHECK(same_weights(weights(*resumed), weights(*whole)));
  CHECK(rows(folder) == rows(quiet_folder));
}

TEST_CASE("a resume from a copied checkpoint that trains nothing leaves a checkpoint in its run folder") {
  const TemporaryFolder before, copied, after;
  const FitReport trained = fit(before, {.change = with(nullptr)});
  REQUIRE(trained.last_checkpoint);
  fs::copy(*trained.last_checkpoint, copied / "copy.ckpt", fs::copy_options::recursive);
  const FitReport report = fit(after, {.from = (copied / "copy.ckpt").string(), .change = with(nullptr)});
  CHECK(report.global_step == trained.global_step);
  REQUIRE(report.last_checkpoint);
  CHECK(report.last_checkpoint->parent_path() == fs::path(after / "fulgur_logs/version_0/checkpoints"));
  CHECK(read_checkpoint(*report.last_checkpoint).state.at("progress").at("global_step").as_int() == 60);
}

TEST_CASE("a save that is due at an epoch's end is made by the process that ends the epoch") {
  ModelCheckpoint::Options saving;
  saving.every = Interval{1, Interval::Unit::epochs};
  saving.save_top_k = -1;
  saving.monitor = "val_loss";
  const auto signalling = [] {
    auto hooks = std::make_shared<AtHooks>();
    hooks->validation_batch = [](RunContext& run) {
      if (run.progress().global_step == 20) std::raise(SIGTERM);
    };
    return hooks;
  };
  const TemporaryFolder folder, quiet_folder;
  fit(quiet_folder, {.saving = saving, .change = with(nullptr)});
  fit(folder, {.saving = saving, .change = with(signalling())});
  // The resumed run ends the epoch, and is then interrupted before its next step.
  fit(folder, {.from = "auto", .ends_at = 20, .saving = saving, .change = with(nullptr)});
  fit(folder, {.from = "auto", .saving = saving, .change = with(nullptr)});
  // The checkpoint of the signal had the name.
  auto expected = checkpoints(quiet_folder);
  expected.erase("epoch=1-step=20.ckpt");
  expected.insert("epoch=1-step=20-v1.ckpt");
  CHECK(checkpoints(folder) == expected);
}

}  // namespace interrupted_ends_test
