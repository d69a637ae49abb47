// Every option of the Trainer is tested by its effect.
#include "trainer/boring.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/system/parked_threads.h"
#include "fulgur/trainer/fabric.h"
#include "support/busy_processes.h"
#include "support/busy_threads.h"
#include "support/counted_lines.h"
#include "support/shown_lines.h"

namespace trainer_options_effect_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

struct Counting : SelfPlanned {
  int64_t train = 0, val = 0, test = 0, predict = 0, validations = 0, clipped = 0;
  std::vector<int64_t> validated_at;
  double largest_gradient = 0;
  StepOutput training_step(const Batch& b, int64_t i) override {
    ++train;
    return SelfPlanned::training_step(b, i);
  }
  Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
    ++val;
    return SelfPlanned::validation_step(b, i, l);
  }
  Outputs test_step(const Batch& b, int64_t i, int64_t l) override {
    ++test;
    return SelfPlanned::test_step(b, i, l);
  }
  Outputs predict_step(const Batch& b, int64_t i, int64_t l) override {
    ++predict;
    return SelfPlanned::predict_step(b, i, l);
  }
  void on_validation_start() override {
    ++validations;
    validated_at.push_back(run().progress().batches_total.completed);
  }
  void configure_gradient_clipping(Optimizer& o, std::optional<double> v, ClipAlgorithm a) override {
    SelfPlanned::configure_gradient_clipping(o, v, a);
    double squares = 0;
    for (const Tensor& g : o.gradients()) {
      squares += g.square().sum().item<double>();
      largest_entry = std::max(largest_entry, g.abs().max().item<double>());
    }
    largest_gradient = std::max(largest_gradient, std::sqrt(squares));
  }
  double largest_entry = 0;
};

std::shared_ptr<Counting> fit(TrainerOptions options, std::shared_ptr<DataModule> data = regression_data(),
                              FitReport* report = nullptr) {
  auto module = std::make_shared<Counting>();
  const FitReport result = Trainer(std::move(options)).fit(module, data);
  if (report) *report = result;
  return module;
}

}  // namespace

TEST_CASE("max_epochs, max_steps: whichever comes first") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  FitReport report;
  options.max_epochs = 3;
  CHECK(fit(options, regression_data(), &report)->train == 30);
  CHECK(report.stop_reason == "max_epochs");
  options.max_steps = 7;
  CHECK(fit(options, regression_data(), &report)->train == 7);
  CHECK(report.stop_reason == "max_steps");
  options.max_epochs = 0;
  CHECK(fit(options)->train == 0);
  options.max_epochs.reset();
  CHECK(fit(options)->train == 7);
  options.max_epochs = -1;
  CHECK(fit(options)->train == 7);
}

TEST_CASE("the last line of a fit counts the epochs that are done, without or beyond a limit of them") {
  TemporaryFolder folder;
  const auto last_line = [&](int64_t max_epochs, int64_t max_steps, const CheckpointChoice& from = {}) {
    TrainerOptions options = quiet(folder);
    options.max_epochs = max_epochs;
    options.max_steps = max_steps;
    const std::string lines =
        shown_lines([&] { Trainer(options).fit(std::make_shared<Counting>(), regression_data(), from); });
    const size_t begin = lines.find("stopped: ");
    return lines.substr(begin, lines.find(" · last", begin) - begin);
  };
  CHECK(last_line(0, -1) == "stopped: max_epochs · 0 epochs, 0 steps");
  CHECK(last_line(-1, 25) == "stopped: max_steps · 2 epochs, 25 steps");
  CHECK(last_line(1, -1, "last") == "stopped: max_epochs · 2 epochs, 25 steps");
}

TEST_CASE("limit_*_batches: a count, a fraction, nothing") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.limit_train_batches = 3;
  options.limit_val_batches = 0.5;  // of 3
  auto module = fit(options);
  CHECK(module->train == 3);
  CHECK(module->val == 1);
  options.limit_train_batches = 1.0;
  options.limit_val_batches = 0;
  module = fit(options);
  CHECK(module->train == 10);
  CHECK(module->val == 0);
  options.limit_train_batches = 0.01;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("limit_train_batches"));
  options = quiet(folder);
  options.limit_test_batches = 2;
  options.limit_predict_batches = 1;
  auto counting = std::make_shared<Counting>();
  Trainer trainer(options);
  trainer.test(counting, regression_data());
  trainer.predict(counting, regression_data());
  CHECK(counting->test == 2);
  CHECK(counting->predict == 1);
}

TEST_CASE("val_check_interval and check_val_every_n_epoch") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 4;
  CHECK(fit(options)->validated_at == std::vector<int64_t>{10, 20, 30, 40});
  options.check_val_every_n_epoch = 2;
  CHECK(fit(options)->validated_at == std::vector<int64_t>{20, 40});
  options.check_val_every_n_epoch = 1;
  options.max_epochs = 1;
  options.val_check_interval = 0.25;
  CHECK(fit(options)->validated_at == std::vector<int64_t>{2, 4, 6, 8, 10});
  options.val_check_interval = 4;
  CHECK(fit(options)->validated_at == std::vector<int64_t>{4, 8});
  options.val_check_interval = 11;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("never run"));
  options.check_val_every_n_epoch.reset();
  options.max_epochs = 3;
  CHECK(fit(options)->validated_at == std::vector<int64_t>{11, 22});
}

TEST_CASE("accumulate_grad_batches makes fewer steps") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accumulate_grad_batches = 4;
  FitReport report;
  CHECK(fit(options, regression_data(), &report)->train == 10);
  CHECK(report.global_step == 3);
}

TEST_CASE("an accumulated window equals one large batch") {
  const auto train = [](int64_t batch_size, int64_t accumulate) {
    at::manual_seed(4);
    auto module = std::make_shared<SelfPlanned>();
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.accumulate_grad_batches = accumulate;
    Trainer(options).fit(module, regression_data(40, 0, batch_size, false));
    return weights(*module);
  };
  const auto whole = train(8, 1), components = train(4, 2);
  for (const auto& [name, value] : whole) CHECK((value - components.at(name)).abs().max().item<double>() < 1e-6);
}

TEST_CASE("gradient_clip_val by norm and by value") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  CHECK(fit(options)->largest_gradient > 0.05);
  options.gradient_clip_val = 0.0;  // no clipping, as in Lightning
  CHECK(fit(options)->largest_gradient > 0.05);
  options.gradient_clip_val = 0.05;
  CHECK(fit(options)->largest_gradient <= 0.0501);
  options.gradient_clip_algorithm = ClipAlgorithm::value;
  CHECK(fit(options)->largest_entry <= 0.0500001);
}

TEST_CASE("fast_dev_run runs n batches of each loop and leaves no file") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 50;
  options.fast_dev_run = 2;
  FitReport report;
  auto module = fit(options, regression_data(), &report);
  CHECK(module->train == 2);
  CHECK(module->val == 2);
  CHECK(report.run_dir.empty());
  options.fast_dev_run = true;
  module = fit(options, regression_data(), &report);
  CHECK(module->train == 1);
  CHECK(fs::is_empty(folder.path()));
  // A text would be `true`.
  STATIC_CHECK_FALSE(std::is_assignable_v<FastDevRun&, const char*>);
}

TEST_CASE("log_every_n_steps decides how many rows there are, 0 turns step rows off") {
  for (const auto& [every, rows] : std::vector<std::pair<int64_t, size_t>>{{1, 10}, {5, 2}, {0, 1}}) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.log_every_n_steps = every;
    auto logger = std::make_shared<MemoryLogger>();
    TrainerComponents components;
    components.loggers = {logger};
    Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data());
    CHECK(logger->values("train_loss").size() == rows);  // the last row holds what no interval ended
  }
  // Means of several epochs are announced.
  const auto shown = [](int64_t every, int64_t epochs, std::optional<int64_t> global_batch_size = {}) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.max_epochs = epochs;
    options.log_every_n_steps = every;
    options.global_batch_size = global_batch_size;
    return shown_lines([&] { Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data()); });
  };
  CHECK_THAT(shown(50, 2), ContainsSubstring("rows of step values: every 50 steps; an epoch has 10"));
  CHECK_THAT(shown(50, 2, 8), ContainsSubstring("an epoch has 5"));  // of two batches each
  CHECK(shown(10, 2).find("rows of step values") == std::string::npos);
  CHECK(shown(50, 1).find("rows of step values") == std::string::npos);
}

TEST_CASE("the same seed gives the same run, another seed another") {
  const auto train = [](uint64_t seed) {
    Config config;
    config.seed_everything = {.enabled = true, .seed = seed};
    TemporaryFolder folder;
    config.trainer = quiet(folder);
    Trainer trainer = Trainer::from_config(config);
    trainer.prepare_process();
    auto module = std::make_shared<SelfPlanned>(0.3);
    trainer.fit(module, regression_data());
    return weights(*module);
  };
  CHECK(same_weights(train(1), train(1)));
  CHECK_FALSE(same_weights(train(1), train(2)));
}

TEST_CASE("a trainer that is made from a config changes nothing in the process until it is asked to") {
  Config config;
  config.seed_everything = {.enabled = true, .seed = 7};
  config.trainer.num_threads = 1;
  at::manual_seed(1);
  const Tensor expected = at::rand({1});
  at::manual_seed(1);
  const int threads = at::get_num_threads();
  const Trainer trainer = Trainer::from_config(config);
  CHECK(at::get_num_threads() == threads);
  CHECK(at::rand({1}).equal(expected));
  trainer.prepare_process();
  const Tensor drawn = at::rand({1});
  at::manual_seed(7);
  CHECK(at::rand({1}).equal(drawn));
  CHECK(at::get_num_threads() == 1);
  at::set_num_threads(threads);
}

TEST_CASE("deterministic is on during the run and back afterwards") {
  struct Looking : SelfPlanned {
    bool seen = false;
    void on_train_start() override { seen = at::globalContext().deterministicAlgorithms(); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  auto module = std::make_shared<Looking>();
  Trainer(options).fit(module, regression_data());
  CHECK_FALSE(module->seen);
  options.deterministic = true;
  Trainer(options).fit(module, regression_data());
  CHECK(module->seen);
  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST_CASE("num_threads sets LibTorch's threads") {
  struct Looking : SelfPlanned {
    int seen = 0;
    void on_train_start() override { seen = at::get_num_threads(); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  auto module = std::make_shared<Looking>();
  options.num_threads = Auto<int64_t>(2);
  Trainer(options).fit(module, regression_data());
  CHECK(module->seen == 2);
  options.num_threads = Auto<int64_t>(1);
  Trainer(options).fit(module, regression_data());
  CHECK(module->seen == 1);
}

TEST_CASE("with several threads, a run sees that others use the CPUs; with one it need not") {
  if (!fulgur::detail::ParkedThreads::are_possible(2)) SKIP("another OpenMP than GCC's, or too many CPUs");
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) SKIP("the environment decides how threads wait");
  // Until the message comes, or for a while.
  struct Waiting : SelfPlanned {
    explicit Waiting(std::chrono::seconds longest) : limit(longest) {}
    void on_train_start() override {
      const BusyThreads own(2);
      const BusyProcesses others(2 * std::thread::hardware_concurrency());
      const auto end = std::chrono::steady_clock::now() + limit;
      while (messages.count() == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::chrono::seconds limit;
    CountedLines messages{"threads: other processes use the CPUs"};
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  for (const int64_t threads : {2, 1}) {
    options.num_threads = Auto<int64_t>(threads);
    const auto module = std::make_shared<Waiting>(std::chrono::seconds(threads == 2 ? 60 : 2));
    Trainer(options).fit(module, regression_data());
    CHECK(module->messages.count() == (threads == 2 ? 1 : 0));
  }
}

TEST_CASE("precision 64-true trains in double") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.precision = Spec<Precision>("64-true");
  const auto module = fit(options);
  CHECK(module->parameters()[0].scalar_type() == at::kDouble);
  CHECK(module->train == 10);
}

TEST_CASE("accelerator and devices that this machine lacks are errors that list the existing ones") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.devices = 2;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("this machine has 1 cpu device: 0 (") &&
                                      ContainsSubstring("trainer.strategy: ddp"));
  options = quiet(folder);
  options.accelerator = "tpu";
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("trainer.accelerator: must be one of auto, cpu"));
}

TEST_CASE("enable_checkpointing false writes none and refuses a checkpoint callback") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.enable_checkpointing = false;
  FitReport report;
  fit(options, regression_data(), &report);
  CHECK_FALSE(fs::exists(report.run_dir / "checkpoints"));
  CHECK_FALSE(report.last_checkpoint);
  options.callbacks.emplace_back("ModelCheckpoint");
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("enable_checkpointing"));
  options.callbacks.clear();
  options.on_nonfinite = OnNonFinite::rollback;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("[trainer.on_nonfinite] a rollback returns to a checkpoint, and "
                                                    "enable_checkpointing is false."));
  options.enable_checkpointing = true;
  CHECK_NOTHROW(fit(options));
}

TEST_CASE("the run folder has config, metrics and checkpoints; logger false leaves the metrics out") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  FitReport report;
  fit(options, regression_data(), &report);
  for (const char* name : {"config.yaml", "metrics.csv", "metrics.jsonl", "checkpoints/last.ckpt/model.safetensors"})
    CHECK(fs::exists(report.run_dir / name));
  CHECK(report.run_dir == folder / "fulgur_logs/version_0");
  options.logger = Spec<Logger>("JsonlLogger");
  fit(options, regression_data(), &report);
  CHECK_FALSE(fs::exists(report.run_dir / "metrics.csv"));
  CHECK(fs::exists(report.run_dir / "metrics.jsonl"));
  options.logger = false;
  fit(options, regression_data(), &report);
  CHECK(report.run_dir == folder / "fulgur_logs/version_2");
  CHECK_FALSE(fs::exists(report.run_dir / "metrics.jsonl"));
  options.logger = "CsvLogger";
  fit(options, regression_data(), &report);
  CHECK(fs::exists(report.run_dir / "metrics.csv"));
  CHECK_FALSE(fs::exists(report.run_dir / "metrics.jsonl"));
  options.logger = {"CsvLogger", Spec<Logger>("JsonlLogger")};
  fit(options, regression_data(), &report);
  CHECK(fs::exists(report.run_dir / "metrics.csv"));
  CHECK(fs::exists(report.run_dir / "metrics.jsonl"));
  options.logger = std::vector<Spec<Logger>>();
  fit(options, regression_data(), &report);
  CHECK_FALSE(fs::exists(report.run_dir / "metrics.csv"));
  // Without checkpoints too, there is what a repetition and --resume need, and nothing else.
  options.enable_checkpointing = false;
  fit(options, regression_data(), &report);
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(report.run_dir)) files.insert(entry.path().filename().string());
  CHECK(files == std::set<std::string>{"config.yaml", "finished.json"});
}

TEST_CASE("F38 an empty or too small training set is an error before the first step") {
  TemporaryFolder folder;
  struct Empty : Loader {
    std::optional<int64_t> size() const override { return 0; }
    std::optional<int64_t> samples() const override { return 0; }
    int64_t batch_size() const override { return 1; }
    void start_epoch(int64_t) override {}
    bool next(Batch&) override { return false; }
    void unread() override {}
    void configure(uint64_t, int64_t, int64_t) override {}
    StateTree state() const override { return {}; }
    void load_state(const StateTree&) override {}
  };
  auto module = std::make_shared<Counting>();
  CHECK_THROWS_AS(Trainer(quiet(folder)).fit(module, DataSource(std::make_shared<Empty>())), DataError);
  CHECK(module->train == 0);
}

TEST_CASE("a loader of unknown length: the last short window is scaled by its real length") {
  // The same batches, once with and once without a known length.
  struct Unsized : DataLoader {
    using DataLoader::DataLoader;
    std::optional<int64_t> size() const override { return std::nullopt; }
  };
  const auto train = [](bool sized) {
    at::manual_seed(4);
    auto module = std::make_shared<SelfPlanned>();
    auto dataset = std::make_shared<TensorDataset>(regression(40));
    const DataLoaderOptions options{.batch_size = 4};
    std::shared_ptr<Loader> loader;
    if (sized)
      loader = std::make_shared<DataLoader>(dataset, options);
    else
      loader = std::make_shared<Unsized>(dataset, options);
    TemporaryFolder folder;
    TrainerOptions trainer_options = quiet(folder);
    trainer_options.accumulate_grad_batches = 3;
    trainer_options.max_epochs = 2;
    const FitReport report = Trainer(trainer_options).fit(module, DataSource(loader));
    CHECK(report.global_step == 8);
    return weights(*module);
  };
  const auto a = train(true), b = train(false);
  for (const auto& [name, value] : a) CHECK((value - b.at(name)).abs().max().item<double>() < 1e-6);
}

TEST_CASE(
    "SIGINT ends the run after the batch with a checkpoint, exit code 130; SIGTERM 75, or 143 without checkpoint") {
  struct Signalled : SelfPlanned {
    int number = SIGINT;
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (i == 3) std::raise(number);
      return SelfPlanned::training_step(b, i);
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Signalled>();
  TrainerOptions options = quiet(folder);
  FitReport report = Trainer(options).fit(module, regression_data());
  CHECK(report.exit_code == ExitCode::interrupted);
  CHECK(report.global_step == 4);
  CHECK(summarize_checkpoint(*report.last_checkpoint).global_step == 4);
  module->number = SIGTERM;
  CHECK(Trainer(options).fit(module, regression_data()).exit_code == ExitCode::preempted);
  options.enable_checkpointing = false;
  CHECK(Trainer(options).fit(module, regression_data()).exit_code == ExitCode::terminated);
}

TEST_CASE("wrong losses are errors that say what to do") {
  struct Bad : SelfPlanned {
    int kind = 0;
    StepOutput training_step(const Batch& b, int64_t) override {
      const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
      return kind == 0 ? loss.detach() : loss.expand({2});
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Bad>();
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(module, regression_data()), ContainsSubstring("no graph"));
  module->kind = 1;
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(module, regression_data()), ContainsSubstring("must be a scalar"));
  struct Freezing : SelfPlanned {
    void on_train_start() override {
      for (Tensor& parameter : parameters()) parameter.set_requires_grad(false);
    }
  };
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<Freezing>(), regression_data()),
                    ContainsSubstring("No parameter of the module requires a gradient: all 4 are frozen"));
}

TEST_CASE("a fit without optimizer, without data, with two optimizers is refused with a hint") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<BoringModule>(), regression_data()),
                    ContainsSubstring("names none"));
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<SelfPlanned>()), ContainsSubstring("no training data"));
  // Without data, this error comes alone; with data, a fit without a limit is a warning.
  TrainerOptions unlimited = quiet(folder);
  unlimited.max_epochs.reset();
  unlimited.stop_after = Interval::parse("1st");
  std::string error;
  const auto lines_of = [&](const DataSource& data) {
    return shown_lines([&] { Trainer(unlimited).fit(std::make_shared<SelfPlanned>(), data); }, &error);
  };
  CHECK(lines_of({}).find("no_limit") == std::string::npos);
  CHECK_THAT(error, ContainsSubstring("no training data"));
  error.clear();
  CHECK(lines_of(regression_data()).find("[trainer.no_limit]") != std::string::npos);
  CHECK(error.empty());
  struct Two : BoringModule {
    OptimizerPlan configure_optimizers() override {
      return OptimizerPlan(std::vector<PlannedOptimizer>{{std::make_shared<SGD>(SGD::Options{}), {}},
                                                         {std::make_shared<SGD>(SGD::Options{}), {}}});
    }
  };
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<Two>(), regression_data()),
                    ContainsSubstring("2 optimizers"));
  TrainerComponents components;
  components.optimizer = Spec<Optimizer>("SGD");
  CHECK_THROWS_WITH(Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data()),
                    ContainsSubstring("both"));
  CHECK(Trainer(quiet(folder), components).fit(std::make_shared<BoringModule>(), regression_data()).global_step == 10);
}

TEST_CASE("options that are set in C++ are checked when a Trainer or a Fabric is made, as those of a config are") {
  const auto refused = [](const char* option, const auto& set) {
    CAPTURE(option);
    TrainerOptions options;
    set(options);
    CHECK_THAT(message_of<ConfigError>([&] { Trainer{options}; }), ContainsSubstring(cat("trainer.", option)));
  };
  refused("accumulate_grad_batches", [](TrainerOptions& o) { o.accumulate_grad_batches = 0; });
  refused("check_val_every_n_epoch", [](TrainerOptions& o) { o.check_val_every_n_epoch = 0; });
  refused("num_threads", [](TrainerOptions& o) { o.num_threads = -3; });
  refused("max_epochs", [](TrainerOptions& o) { o.max_epochs = -5; });
  refused("limit_train_batches", [](TrainerOptions& o) { o.limit_train_batches = 1.5; });
  refused("limit_val_batches", [](TrainerOptions& o) { o.limit_val_batches = -0.5; });
  refused("gradient_clip_val", [](TrainerOptions& o) { o.gradient_clip_val = -1.0; });
  refused("float32_matmul_precision", [](TrainerOptions& o) { o.float32_matmul_precision = "hi"; });
  refused("max_steps", [](TrainerOptions& o) { o.max_steps = -7; });
  refused("fast_dev_run", [](TrainerOptions& o) { o.fast_dev_run = -2; });
  refused("logger", [](TrainerOptions& o) { o.logger = "NoLogger"; });
  refused("strategy", [](TrainerOptions& o) { o.strategy = "none"; });
  CHECK_THAT(message_of<ConfigError>([] { Fabric({.num_nodes = 0}); }), ContainsSubstring("trainer.num_nodes"));
  CHECK_NOTHROW(Trainer(TrainerOptions()));
}

TEST_CASE("options take texts in C++, and no null pointer") {
  TrainerOptions options;
  options.max_time = "10min";
  CHECK(options.max_time->value == 600);
  options.val_check_interval = "500st";
  CHECK(options.val_check_interval.interval->unit == Interval::Unit::steps);
  CHECK_THAT(message_of<ConfigError>([&] { options.max_time = "00:00:10:00"; }), ContainsSubstring("90min"));
  options.strategy = "ddp";
  CHECK(options.strategy.class_path() == "ddp");
  options.logger = std::string("CsvLogger");
  CHECK(options.logger.loggers.at(0).class_path() == "CsvLogger");
  options.fast_dev_run = size_t{3};
  CHECK(options.fast_dev_run.batches == 3);
  options.devices = {0, 3};
  CHECK(options.devices.indices == std::vector<int64_t>{0, 3});
  CHECK_FALSE(options.devices.count);
  options.devices = {2};
  CHECK(options.devices.indices == std::vector<int64_t>{2});
  options.devices = "3,";
  CHECK(options.devices.indices == std::vector<int64_t>{3});
  options.devices = 2;
  CHECK(options.devices.count == 2);
  CHECK(options.devices.indices.empty());
  options.devices = "auto";
  CHECK(options.devices.is_auto());
  CHECK_THAT(message_of<ConfigError>([&] { options.devices = "two"; }),
             ContainsSubstring("[trainer.devices]") && ContainsSubstring("two"));
  CHECK_THAT(message_of<ConfigError>([&] { options.devices = "0,0"; }), ContainsSubstring("only once"));
  options.deterministic = "warn";
  CHECK(options.deterministic.warn_only);
  options.deterministic = "false";
  CHECK_FALSE(options.deterministic.enabled);
  CHECK_THAT(message_of<ConfigError>([&] { options.deterministic = "warm"; }),
             ContainsSubstring("[trainer.deterministic]") && ContainsSubstring("warm"));
  STATIC_CHECK_FALSE(std::is_assignable_v<DeviceChoice&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<DeterministicChoice&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<DeterministicChoice&, void*>);
  STATIC_CHECK_FALSE(std::is_assignable_v<ValCheckInterval&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<Length&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<LoggerChoice&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<Spec<Strategy>&, std::nullptr_t>);
  STATIC_CHECK_FALSE(std::is_assignable_v<FastDevRun&, char>);
}

}  // namespace trainer_options_effect_test
