// Which checkpoint a fit continues from, where it continues, and what of it is loaded.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "trainer/boring.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <set>

#include "checkpointing/resume.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/log.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/loggers/csv_logger.h"
#include "support/expect_error.h"

namespace resume_choice_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::VerifiedCheckpoint;
namespace fs = std::filesystem;

namespace {

struct Result {
  FitReport report;
  std::map<std::string, Tensor> weights;
  std::string told;
};

// A run of its own process, as far as the Trainer can tell. Saves each 5 steps, and keeps them.
Result fit(const TemporaryFolder& folder, const CheckpointChoice& from, int64_t max_steps,
           const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {},
           std::shared_ptr<LightningModule> module = nullptr, DataSource data = {}) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.max_steps = max_steps;
  options.num_threads = Auto<int64_t>{1};
  TrainerComponents components;
  components.seed = 5;
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 5;
  saving.save_top_k = -1;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  if (change) change(options, components);
  if (!module) {
    at::manual_seed(3);
    module = std::make_shared<SelfPlanned>(0.3);
  }
  if (!data.module && data.train.empty()) data = regression_data();
  Result result;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
      &result.told);
  try {
    result.report = Trainer(options, components).fit(module, data, from);
  } catch (...) {
    log::set_sink({}, nullptr);
    throw;
  }
  log::set_sink({}, nullptr);
  result.weights = weights(*module);
  return result;
}

void damage(const fs::path& file) {
  std::string bytes = read_text(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(file, bytes);
}

fs::path run_folder(const TemporaryFolder& folder, int version = 0) {
  return folder / "fulgur_logs" / ("version_" + std::to_string(version));
}

}  // namespace

TEST_CASE("ckpt_path auto starts a new run if there is none, then resumes in the run's folder to the same bits") {
  TemporaryFolder folder, other;
  const Result whole = fit(other, {}, -1);
  const Result first = fit(folder, "auto", 12);
  CHECK_THAT(first.told, ContainsSubstring("there is no checkpoint to resume from"));
  const Result second = fit(folder, "auto", -1);
  CHECK(second.report.global_step == 30);
  CHECK(same_weights(whole.weights, second.weights));
  CHECK(second.report.run_dir == run_folder(folder));
  CHECK_FALSE(fs::exists(run_folder(folder, 1)));
}

TEST_CASE("ckpt_path auto skips what is damaged, with its reason, and takes the newest that verifies") {
  TemporaryFolder folder;
  fit(folder, {}, 12);
  const fs::path checkpoints = run_folder(folder) / "checkpoints";
  damage(checkpoints / "epoch=1-step=12.ckpt/model.safetensors");
  fs::resize_file(checkpoints / "epoch=0-step=10.ckpt/manifest.json", 40);
  const Result second = fit(folder, "auto", 30);
  CHECK_THAT(second.told, ContainsSubstring("epoch=1-step=12.ckpt cannot be used and is skipped") &&
                              ContainsSubstring("has changed since it was written"));
  CHECK_THAT(second.told, ContainsSubstring("epoch=0-step=10.ckpt cannot be used"));
  CHECK_THAT(second.told, ContainsSubstring("checkpoint: " + (checkpoints / "epoch=0-step=5.ckpt").string()));
  TemporaryFolder other;
  CHECK(same_weights(second.weights, fit(other, {}, 30).weights));
}

TEST_CASE("a checkpoint that was read before its run is not read again, unless it was replaced") {
  TemporaryFolder folder, other;
  const fs::path checkpoint = *fit(folder, {}, 12).report.last_checkpoint;
  const CheckpointContent content = read_checkpoint(checkpoint);
  VerifiedCheckpoint linked{checkpoint, content}, replaced{checkpoint, content};
  CHECK(linked.take(run_folder(folder) / "checkpoints/last.ckpt"));
  CHECK_FALSE(linked.content);
  ++replaced.content->origin.save_counter;
  CHECK_FALSE(replaced.take(checkpoint));
  CHECK_FALSE(replaced.content);

  const auto verified = std::make_shared<VerifiedCheckpoint>(VerifiedCheckpoint{checkpoint, content});
  const auto resume = [&] {
    return fit(folder, checkpoint.string(), 30,
               [&](TrainerOptions&, TrainerComponents& components) { components.verified_checkpoint = verified; });
  };
  damage(checkpoint / "model.safetensors");  // seen by any run that reads it
  CHECK(same_weights(resume().weights, fit(other, {}, 30).weights));
  CHECK_FALSE(verified->content);
  CHECK_THROWS_AS(resume(), CheckpointError);
}

TEST_CASE("an explicit path never falls back") {
  TemporaryFolder folder;
  const Result first = fit(folder, {}, 12);
  damage(*first.report.last_checkpoint / "optimizer.safetensors");
  CHECK_THROWS_AS(fit(folder, "last", 30), CheckpointError);
  CHECK_THROWS_AS(fit(folder, first.report.last_checkpoint->string(), 30), CheckpointError);
}

TEST_CASE("load.verify needed skips files that are not read; whole, the default, does not") {
  TemporaryFolder folder;
  const Result first = fit(folder, {}, 12);
  damage(*first.report.last_checkpoint / "optimizer.safetensors");
  const auto validate = [&](const char* verify) {
    TrainerComponents components;
    components.load.verify = *enum_from<Verify>(verify);
    return Trainer(quiet(folder), components)
        .validate(std::make_shared<SelfPlanned>(), regression_data(), first.report.last_checkpoint->string());
  };
  CHECK_THROWS_AS(validate("whole"), CheckpointError);
  CHECK(validate("needed").samples == 12);
}

TEST_CASE("a finished run says so and trains no more; with a higher limit it continues") {
  TemporaryFolder folder;
  const Result first = fit(folder, "auto", 12);
  const Result again = fit(folder, "auto", 12);
  CHECK_THAT(again.told, ContainsSubstring("is finished (max_steps, 1 epoch, 12 steps)"));
  CHECK(again.report.exit_code == ExitCode::ok);
  CHECK(again.report.global_step == 12);
  CHECK(again.report.last_checkpoint == first.report.last_checkpoint);
  CHECK(fit(folder, "auto", 14).report.global_step == 14);
}

TEST_CASE("a finished run has the metrics that it ended with, also those of the rest of a window of steps") {
  TemporaryFolder folder;
  const Result first = fit(folder, {}, 14);
  const Result again = fit(folder, "auto", 14);
  CHECK_THAT(again.told, ContainsSubstring("is finished"));
  CHECK_FALSE(first.report.metrics.empty());
  CHECK(again.report.metrics == first.report.metrics);
}

TEST_CASE("a run that a callback has stopped is finished under any limit; last trains on") {
  const std::string reason = GENERATE("enough", "EarlyStopping: worse");
  TemporaryFolder folder;
  struct Stops : Callback {
    explicit Stops(std::string why) : reason(std::move(why)) {}
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == 12) run.request_stop(reason);
    }
    std::string reason;
  };
  fit(folder, {}, 20,
      [&](TrainerOptions&, TrainerComponents& components) { components.add(std::make_shared<Stops>(reason)); });
  const Result again = fit(folder, "auto", 25);
  CHECK(again.report.global_step == 12);
  CHECK_THAT(again.told, ContainsSubstring("is finished (" + reason) &&
                             ContainsSubstring("To train on from its last checkpoint, use --ckpt_path last"));
  CHECK((again.told.find("larger patience") != std::string::npos) == reason.starts_with("EarlyStopping"));
  CHECK(fit(folder, "last", 25).report.global_step == 25);
}

TEST_CASE("ckpt_path auto resumes the newest run with a checkpoint, whatever other verbs and files are newer") {
  TemporaryFolder folder, other;
  fit(folder, {}, 12);
  const auto evaluate = [&] {
    TrainerComponents components;
    components.loggers = {std::make_shared<CsvLogger>()};
    TrainerOptions options = quiet(folder);
    return Trainer(options, components).validate(std::make_shared<SelfPlanned>(), regression_data(), "last");
  };
  REQUIRE(evaluate().run_dir == run_folder(folder, 1));
  fs::create_directories(run_folder(folder, 2) / "checkpoints");  // of a fit that ended before its first checkpoint
  write_text(run_folder(folder, 3), "a file");
  fs::remove(run_folder(folder) / "finished.json");  // as if the run had been interrupted
  const Result second = fit(folder, "auto", 30);
  CHECK(second.report.global_step == 30);
  CHECK(second.report.run_dir == run_folder(folder));
  CHECK_THAT(second.told,
             ContainsSubstring(
                 "resume: version_0; newer folders have no checkpoint of a fit: version_3, version_2, version_1"));
  CHECK(same_weights(second.weights, fit(other, {}, 30).weights));
  // A finished run is found as well.
  fs::remove_all(run_folder(folder, 2));
  REQUIRE(evaluate().run_dir == run_folder(folder, 4));
  CHECK_THAT(fit(folder, "auto", 30).told, ContainsSubstring("is finished"));
}

TEST_CASE("ckpt_path auto does not continue a finished run if a newer fit ended before its first checkpoint") {
  TemporaryFolder folder, other;
  fit(folder, {}, 12);
  fs::create_directories(run_folder(folder, 1) / "checkpoints");
  const Result fresh = fit(folder, "auto", 30);
  CHECK_THAT(fresh.told,
             ContainsSubstring("no checkpoint to resume from (version_1 ended before its first checkpoint)"));
  CHECK(fresh.report.run_dir == run_folder(folder, 2));
  CHECK(same_weights(fresh.weights, fit(other, {}, 30).weights));
}

TEST_CASE("ckpt_path auto skips a newer fit that has finished without checkpoints, unless it has nothing left to do") {
  TemporaryFolder folder;
  fit(folder, {}, 12);
  const auto without = [](TrainerOptions& options, TrainerComponents& components) {
    options.enable_checkpointing = false;
    components.callbacks.clear();
  };
  fit(folder, {}, 4, without);
  CHECK_THAT(fit(folder, "auto", 4, without).told, ContainsSubstring("version_1 is finished"));
  const Result second = fit(folder, "auto", 30);
  CHECK(second.report.global_step == 30);
  CHECK(second.report.run_dir == run_folder(folder));
}

TEST_CASE(
    "data without a length: a run that is cut off inside an epoch's last validation validates it once more, not "
    "twice") {
  struct Counting : SelfPlanned {
    std::vector<int64_t> validated;
    bool cuts = false;
    Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
      if (cuts && run().progress().epoch == 1) std::raise(SIGTERM);
      return SelfPlanned::validation_step(b, i, l);
    }
    void on_validation_end() override { validated.push_back(run().progress().epoch); }
  };
  const auto data = [] {
    return DataSource(regression_stream(12),
                      {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(8, 2)),
                                                    DataLoaderOptions{.batch_size = 4})});
  };
  TemporaryFolder folder;
  const auto cut = std::make_shared<Counting>(), resumed = std::make_shared<Counting>();
  cut->cuts = true;
  const Result first = fit(folder, {}, -1, {}, cut, data());
  REQUIRE(first.report.exit_code != ExitCode::ok);
  REQUIRE(cut->validated == std::vector<int64_t>{0});
  REQUIRE(first.report.last_checkpoint);
  const Result second = fit(folder, first.report.last_checkpoint->string(), -1, {}, resumed, data());
  CHECK(second.report.epochs == 3);
  CHECK(resumed->validated == std::vector<int64_t>{1, 2});
}

TEST_CASE("data without a length that ends before val_check_interval is validated on at the end of its epoch") {
  struct Counting : SelfPlanned {
    std::vector<int64_t> validated_at;
    void on_validation_end() override { validated_at.push_back(run().progress().batches_total.completed); }
  };
  const auto run = [](const ValCheckInterval& interval, int64_t limit) {
    const TemporaryFolder folder;
    const auto module = std::make_shared<Counting>();
    const Result result = fit(
        folder, {}, -1,
        [&](TrainerOptions& options, TrainerComponents&) {
          options.val_check_interval = interval;
          if (limit > 0) options.limit_train_batches = BatchLimit(limit);
        },
        module,
        DataSource(regression_stream(12),
                   {std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(8, 2)),
                                                 DataLoaderOptions{.batch_size = 4})}));
    return std::pair(module->validated_at, result.told);
  };
  // Three batches an epoch.
  const auto [fraction, told] = run(ValCheckInterval(0.5), 100);
  CHECK(fraction == std::vector<int64_t>{3, 6, 9});
  CHECK_THAT(told, ContainsSubstring("ended after 3 batches, before val_check_interval (50 batches)"));
  CHECK(run(ValCheckInterval(10), 0).first == std::vector<int64_t>{3, 6, 9});
  CHECK(run(ValCheckInterval(2), 0).first == std::vector<int64_t>{2, 5, 8});
}

TEST_CASE("a resume into a finished epoch steps the open window and validates, and leaves no gradients") {
  // Ten batches an epoch in windows of four; after the fifth batch the limit becomes five.
  const auto windows = [](int64_t limit) {
    return [limit](TrainerOptions& options, TrainerComponents& components) {
      options.accumulate_grad_batches = 4;
      if (limit > 0) options.limit_train_batches = BatchLimit(limit);
      components.callbacks.clear();
      struct StopsAtBatch : Callback {
        void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t index) override {
          if (run.progress().epoch == 0 && index == 4 && run.num_batches(RunningStage::train) == 10)
            std::raise(SIGTERM);
        }
      };
      components.add(std::make_shared<StopsAtBatch>());
      components.add(std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{}));
    };
  };
  struct Counting : SelfPlanned {
    using SelfPlanned::SelfPlanned;
    std::vector<int64_t> validated_at, stepped_at;
    void on_validation_start() override {
      if (!run().sanity_checking()) validated_at.push_back(run().progress().epoch);
    }
    void on_before_optimizer_step(Optimizer&) override { stepped_at.push_back(run().progress().epoch); }
  };
  TemporaryFolder folder;
  at::manual_seed(3);
  fit(folder, {}, -1, windows(0), std::make_shared<Counting>(0.3));
  const auto resumed = std::make_shared<Counting>(0.3);
  const Result second = fit(folder, "auto", -1, windows(5), resumed);
  CHECK(second.report.epochs == 3);
  CHECK(resumed->validated_at == std::vector<int64_t>{0, 1, 2});
  // The window of batch 5, then four batches and one in each epoch.
  CHECK(resumed->stepped_at == std::vector<int64_t>{0, 1, 1, 2, 2});
}

TEST_CASE("ckpt_path auto is refused while the newest fit is at work, also before its first checkpoint") {
  TemporaryFolder folder;
  fit(folder, {}, 12);
  fs::create_directories(run_folder(folder, 1) / "checkpoints");
  const RunLock at_work(run_folder(folder, 1));
  CHECK_THROWS_WITH(fit(folder, "auto", 30), ContainsSubstring("version_1 is locked by"));
}

TEST_CASE("an exception in a forward keeps the gradients of its window, for the run that resumes") {
  struct Failing : SelfPlanned {
    explicit Failing(int64_t at) : SelfPlanned(0.3), fails_at(at) {}
    int64_t fails_at, batches = 0;
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (batches++ == fails_at) throw std::runtime_error("broken on purpose");
      return SelfPlanned::training_step(b, i);
    }
  };
  const auto saving = [](TrainerOptions& options, TrainerComponents& components) {
    options.accumulate_grad_batches = 3;
    ModelCheckpoint::Options on_exception;
    on_exception.save_on_exception = true;
    on_exception.every_n_epochs = 100;
    components.callbacks = {std::make_shared<ModelCheckpoint>(on_exception)};
  };
  const auto made = [](int64_t fails_at) {
    at::manual_seed(3);
    return std::make_shared<Failing>(fails_at);
  };
  const TemporaryFolder quiet_folder;
  const Result quiet_run = fit(quiet_folder, {}, -1, saving, made(-1));
  for (const int64_t fails_at : {4, 5, 6}) {
    CAPTURE(fails_at);
    const TemporaryFolder folder;
    CHECK_THROWS(fit(folder, {}, -1, saving, made(fails_at)));
    CHECK(same_weights(fit(folder, "auto", -1, saving, made(-1)).weights, quiet_run.weights));
  }
}

TEST_CASE("a run that ended by time resumes under a longer time, and not under the same") {
  TemporaryFolder folder;
  const auto by_limit = [](double seconds) {
    return [seconds](TrainerOptions& options, TrainerComponents&) {
      options.max_epochs = -1;
      options.max_time = Interval{seconds, Interval::Unit::seconds};
    };
  };
  const auto by_timer = [](const char* duration) {
    return [duration](TrainerOptions& options, TrainerComponents&) {
      options.max_epochs = -1;
      Problems problems;
      Spec<Callback> timer;
      REQUIRE(
          timer.read(ConfigNode::map({{"class_path", ConfigNode::string("Timer")},
                                      {"init_args", ConfigNode::map({{"duration", ConfigNode::string(duration)}})}}),
                     problems, "callbacks"));
      options.callbacks.push_back(timer);
    };
  };
  const auto check = [&](const auto& limited, const auto& shorter, const auto& longer) {
    const Result first = fit(folder, {}, -1, limited);
    REQUIRE(first.report.global_step > 0);
    CHECK_THAT(fit(folder, "auto", -1, shorter).told, ContainsSubstring("is finished"));
    const Result second = fit(folder, "auto", first.report.global_step + 3, longer);
    CHECK(second.report.global_step == first.report.global_step + 3);
    CHECK(second.report.run_dir == first.report.run_dir);
  };
  SECTION("max_time") { check(by_limit(0.05), by_limit(0.05), by_limit(1000)); }
  SECTION("Timer") { check(by_timer("0.05s"), by_timer("0.05s"), by_timer("1000s")); }
}

TEST_CASE(
    "from an earlier checkpoint the run continues in its folder, logged rows after it are cut, and auto follows the "
    "new branch") {
  TemporaryFolder folder;
  const auto logged = [](TrainerOptions&, TrainerComponents& components) {
    components.loggers = {std::make_shared<CsvLogger>()};
  };
  fit(folder, {}, 25, logged);
  const fs::path earlier = run_folder(folder) / "checkpoints/epoch=0-step=5.ckpt";
  const Result back = fit(folder, earlier.string(), 12, logged);
  CHECK(back.report.run_dir == run_folder(folder));
  const std::string rows = read_text(run_folder(folder) / "metrics.csv");
  CHECK(rows.find("\n12,") != std::string::npos);
  CHECK(rows.find("\n13,") == std::string::npos);
  CHECK(rows.find("\n25,") == std::string::npos);
  // Step 25 of the branch that was given up is still there, and is not the newest.
  CHECK(fs::exists(run_folder(folder) / "checkpoints/epoch=2-step=25.ckpt"));
  const Result on = fit(folder, "auto", 14, logged);
  CHECK_THAT(on.told, ContainsSubstring("step=12"));
  CHECK(on.report.global_step == 14);
}

TEST_CASE("a run resumes in a folder that was moved") {
  TemporaryFolder folder, other;
  const Result whole = fit(other, {}, 30);
  fit(folder, {}, 12);
  fs::rename(folder / "fulgur_logs", folder / "moved");
  const Result second = fit(folder, (folder / "moved/version_0/checkpoints/last.ckpt").string(), 30);
  CHECK(second.report.run_dir == folder / "moved/version_0");
  CHECK(same_weights(whole.weights, second.weights));
}

TEST_CASE("what is loaded can be chosen") {
  TemporaryFolder folder;
  const Result first = fit(folder, {}, 12);
  const std::string from = first.report.last_checkpoint->string();
  SECTION("only weights: a new run in its own folder") {
    const Result second = fit(
        folder, from, 0, [](TrainerOptions&, TrainerComponents& components) { components.load.weights_only = true; });
    CHECK(second.report.global_step == 0);
    CHECK(second.report.run_dir == run_folder(folder, 1));
    CHECK(same_weights(first.weights, second.weights));
  }
  SECTION("without the optimizer's state its momentum begins at zero") {
    TemporaryFolder plain;
    const Result with = fit(folder, from, 14);
    const Result without = fit(plain, from, 14, [](TrainerOptions&, TrainerComponents& components) {
      components.load.optimizer = components.load.lr_scheduler = false;
    });
    CHECK(without.report.global_step == 14);
    CHECK_FALSE(same_weights(with.weights, without.weights));
  }
  SECTION("without the schedule's state the rate falls from its start again") {
    struct Falling : SelfPlanned {
      using SelfPlanned::SelfPlanned;
      std::shared_ptr<SGD> sgd;
      OptimizerPlan configure_optimizers() override {
        sgd = std::make_shared<SGD>(SGD::Options{.lr = 0.5});
        const auto halving = std::make_shared<ExponentialLR>(ExponentialLR::Options{.gamma = 0.5});
        return {sgd, SchedulerConfig{.scheduler = halving, .interval = ScheduleInterval::step}};
      }
    };
    TemporaryFolder other, plain;
    const std::string falling = fit(other, {}, 12, {}, std::make_shared<Falling>()).report.last_checkpoint->string();
    const auto with = std::make_shared<Falling>(), without = std::make_shared<Falling>();
    fit(
        plain, falling, 14,
        [](TrainerOptions&, TrainerComponents& components) { components.load.lr_scheduler = false; }, without);
    fit(other, falling, 14, {}, with);
    CHECK(with->sgd->groups()[0].lr == std::ldexp(0.5, -14));
    CHECK(without->sgd->groups()[0].lr == std::ldexp(0.5, -2));
  }
  SECTION("without the generators' state dropout draws other numbers") {
    fs::copy(from, folder / "copy.ckpt", fs::copy_options::recursive);
    const Result with = fit(folder, (folder / "copy.ckpt").string(), 14);
    const Result without = fit(folder, (folder / "copy.ckpt").string(), 14,
                               [](TrainerOptions&, TrainerComponents& components) { components.load.rng = false; });
    CHECK_FALSE(same_weights(with.weights, without.weights));
  }
  SECTION("without the loops the run begins at step 0 with the optimizer's state") {
    const Result second =
        fit(folder, from, 3, [](TrainerOptions&, TrainerComponents& components) { components.load.loops = false; });
    CHECK(second.report.global_step == 3);
    CHECK(second.report.run_dir == run_folder(folder, 1));
  }
  SECTION("other names and shapes") {
    struct Renamed : SelfPlanned {
      torch::nn::Linear body{nullptr};
      Renamed() {
        unregister_module("first");
        body = register_module("body", torch::nn::Linear(4, 8));
      }
    };
    const auto change = [](TrainerOptions&, TrainerComponents& components) {
      components.load.weights_only = true;
      components.load.strict = false;
      components.load.key_prefixes = {{"first.", "body."}};
    };
    auto module = std::make_shared<Renamed>();
    fit(folder, from, 0, change, module);
    CHECK(module->body->weight.equal(first.weights.at("first.weight")));
    CHECK_THROWS_WITH(
        fit(folder, from, 0, [](TrainerOptions&, TrainerComponents& components) { components.load.strict = false; }),
        ContainsSubstring("load.weights_only: true"));
  }
}

TEST_CASE("F14 a different optimizer than the state's is refused before the first step") {
  TemporaryFolder folder;
  const Result first = fit(folder, {}, 5);
  struct Planned : SelfPlanned {
    int kind = 0;
    OptimizerPlan configure_optimizers() override {
      if (kind == 0) return std::make_shared<AdamW>(AdamW::Options{});
      // Two groups if there was one.
      auto sgd = std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9});
      ParamGroup a{.name = "a", .params = {first->weight, first->bias}, .names = {"first.weight", "first.bias"}};
      ParamGroup b{.name = "b", .params = {second->weight, second->bias}, .names = {"second.weight", "second.bias"}};
      sgd->attach({a, b});
      return sgd;
    }
    StepOutput training_step(const Batch&, int64_t) override { throw Error("a step was made"); }
  };
  auto module = std::make_shared<Planned>();
  CHECK_THROWS_WITH(fit(folder, first.report.last_checkpoint->string(), 30, {}, module),
                    ContainsSubstring("SGD") && ContainsSubstring("AdamW"));
  module->kind = 1;
  CHECK_THROWS_WITH(fit(folder, first.report.last_checkpoint->string(), 30, {}, module),
                    ContainsSubstring("1 parameter groups, but the run has 2"));
}

namespace {

// Writes down which samples it saw.
struct Seeing : SelfPlanned {
  std::vector<int64_t> seen;
  StepOutput training_step(const Batch& b, int64_t i) override {
    const Tensor ids = b[0].select(1, 0).contiguous();
    for (int64_t r = 0; r < ids.size(0); ++r) seen.push_back(static_cast<int64_t>(ids[r].item<float>()));
    Batch scaled = b;
    scaled.set(0, b[0] / 100);
    return SelfPlanned::training_step(scaled, i);
  }
};

Batch numbered(int64_t samples) {
  Batch data = regression(samples);
  for (int64_t i = 0; i < samples; ++i) data[0][i][0] = static_cast<double>(i);
  return data;
}

}  // namespace

TEST_CASE("with a changed batch size a run resumes by samples: each is seen once in the epoch") {
  for (const int64_t next : {1, 3, 6, 25}) {
    for (const bool drop_last : {false, true}) {
      CAPTURE(next, drop_last);
      TemporaryFolder folder;
      std::vector<int64_t> seen;
      const auto part = [&](int64_t batch_size, int64_t max_steps, const CheckpointChoice& from) {
        auto module = std::make_shared<Seeing>();
        TensorDataModule::Sets sets;
        sets.train = numbered(40);
        auto data = std::make_shared<TensorDataModule>(
            std::move(sets),
            TensorDataOptions{
                .batch_size = batch_size, .eval_batch_size = {}, .shuffle = true, .drop_last = drop_last});
        const Result result = fit(
            folder, from, max_steps, [](TrainerOptions& o, TrainerComponents&) { o.max_epochs = 1; }, module,
            DataSource(data));
        seen.insert(seen.end(), module->seen.begin(), module->seen.end());
        return result;
      };
      part(4, 3, {});
      REQUIRE(seen.size() == 12);
      const Result second = part(next, -1, "last");
      CHECK(second.report.epochs == 1);
      const int64_t left = drop_last ? 28 / next * next : 28;
      CHECK(second.report.global_step == 3 + (left + next - 1) / next);
      CHECK(static_cast<int64_t>(seen.size()) == 12 + left);
      CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == seen.size());
    }
  }
}

TEST_CASE("a resume inside an epoch of other data, or in another order, is warned about; at an epoch's end it is not") {
  const auto resumed = [](int64_t steps, int64_t samples, bool shuffle, int64_t overfit_batches) {
    TemporaryFolder folder;
    fit(folder, {}, steps, {}, nullptr, DataSource(regression_data(40, 0)));
    return fit(
               folder, "last", steps + 3,
               [&](TrainerOptions& options, TrainerComponents&) { options.overfit_batches = overfit_batches; }, nullptr,
               DataSource(regression_data(samples, 0, 4, shuffle)))
        .told;
  };
  CHECK_THAT(resumed(3, 40, true, 0), !ContainsSubstring("data.order_changed"));
  CHECK_THAT(resumed(3, 60, true, 0), ContainsSubstring("the number of samples (40, now 60) changed") &&
                                          ContainsSubstring("[data.order_changed]"));
  CHECK_THAT(resumed(3, 40, false, 0), ContainsSubstring("shuffle (true, now false) changed"));
  CHECK_THAT(resumed(3, 40, true, 8), ContainsSubstring("shuffle (true, now false) changed"));
  CHECK_THAT(resumed(10, 60, false, 0), !ContainsSubstring("data.order_changed"));
  // Of the smaller set as much was read as it has, or more.
  CHECK_THAT(resumed(5, 20, true, 0), ContainsSubstring("the number of samples (40, now 20) changed"));
  CHECK_THAT(message_of<DataError>([&] { resumed(5, 12, true, 0); }), ContainsSubstring("20 samples into epoch 0"));
}

TEST_CASE("a resume late in an epoch reads no earlier samples") {
  struct Counting : SampleDataset {
    mutable std::atomic<int64_t> reads{0};
    int64_t size() const override { return 400; }
    Sample get(int64_t index, const SampleContext&) const override {
      ++reads;
      return {{"x", at::full({4}, static_cast<double>(index) / 400)}, {"y", at::zeros({2})}};
    }
  };
  TemporaryFolder folder;
  const auto dataset = std::make_shared<Counting>();
  const auto loader = [&] {
    return DataSource(std::make_shared<DataLoader>(dataset, DataLoaderOptions{.batch_size = 4, .shuffle = true}));
  };
  fit(folder, {}, 90, {}, nullptr, loader());
  CHECK(dataset->reads == 360 + 1);  // one to know what a sample is
  dataset->reads = 0;
  fit(folder, "last", 91, {}, nullptr, loader());
  CHECK(dataset->reads == 4 + 1);
}

TEST_CASE(
    "with any number of loader workers a run continues to the same bits, at any batch, inside an accumulation window, "
    "with dropout") {
  const auto data = [](int64_t workers) {
    TensorDataModule::Sets sets;
    sets.train = regression(40);
    return DataSource(std::make_shared<TensorDataModule>(
        std::move(sets), TensorDataOptions{.batch_size = 4,
                                           .eval_batch_size = {},
                                           .shuffle = true,
                                           .drop_last = false,
                                           .loading = {.num_workers = Auto<int64_t>{workers}}}));
  };
  // A signal is the way to stop at a batch that ends no window.
  struct Stopping : SelfPlanned {
    int64_t at = -1, batches = 0;
    Stopping() : SelfPlanned(0.3) {}
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (++batches == at) std::raise(SIGTERM);
      return SelfPlanned::training_step(b, i);
    }
  };
  const auto accumulated = [](TrainerOptions& o, TrainerComponents&) {
    o.accumulate_grad_batches = 3;
    o.max_epochs = 2;
  };
  const auto made = [](int64_t at) {
    at::manual_seed(3);
    auto module = std::make_shared<Stopping>();
    module->at = at;
    return module;
  };
  TemporaryFolder folder;
  const Result whole = fit(folder, {}, -1, accumulated, made(-1), data(0));
  for (const int64_t workers : {0, 1, 4}) {
    for (int64_t stop = 1; stop < 20; stop += 3) {
      CAPTURE(workers, stop);
      TemporaryFolder own;
      REQUIRE(fit(own, {}, -1, accumulated, made(stop), data(workers)).report.exit_code ==
              (stop < 3 ? ExitCode::terminated : ExitCode::preempted));
      const Result second = fit(own, "auto", -1, accumulated, made(-1), data(workers));
      CHECK(second.report.epochs == 2);
      CHECK(same_weights(whole.weights, second.weights));
    }
  }
}

}  // namespace resume_choice_test
