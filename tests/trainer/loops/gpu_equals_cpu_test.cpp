// What a run on a GPU gives is what it gives on the CPU: weights, logged values, predictions, checkpoints; for each way
// to train.
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/log.h"
#include "fulgur/strategies/mixed_precision.h"
#include "run/step_rows.h"
#include "support/gpu.h"
#include "trainer/boring.h"

namespace gpu_equals_cpu_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

struct Planned : BoringModule {
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.02, 3, 0.5); }
};

// One loss that is not a number.
struct Faulty : Planned {
  int64_t batches = 0;
  StepOutput training_step(const Batch& batch, int64_t index) override {
    StepOutput output = Planned::training_step(batch, index);
    if (++batches == 9) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
    return output;
  }
};

struct Outcome {
  std::map<std::string, Tensor> weights;
  std::vector<MemoryLogger::Row> rows;
  Tensor predictions;
  std::optional<double> test_loss;
  FitReport report;
  std::string error;
};

using Change = std::function<void(TrainerOptions&)>;

std::shared_ptr<DataModule> data_of(int64_t workers, bool pinned) {
  TensorDataModule::Sets sets;
  sets.train = regression(46, 1);
  sets.val = sets.test = sets.predict = regression(13, 2);
  TensorDataOptions options{.batch_size = 4, .eval_batch_size = 5, .shuffle = true};
  options.loading.num_workers = workers;
  options.loading.pin_memory = pinned;
  return std::make_shared<TensorDataModule>(std::move(sets), options);
}

template <class M>
Outcome train(const std::string& accelerator, const TemporaryFolder& folder, const Change& change, int64_t workers = 0,
              const CheckpointChoice& from = {}, std::shared_ptr<Precision> precision = nullptr) {
  Outcome outcome;
  at::manual_seed(21);
  const auto module = std::make_shared<M>();
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.log_every_n_steps = 3;
  options.num_sanity_val_steps = 1;
  options.accelerator = accelerator;
  if (change) change(options);
  const auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.seed = 5;
  components.precision = std::move(precision);
  components.loggers = {logger};
  Trainer trainer(options, components);
  try {
    outcome.report = trainer.fit(module, data_of(workers, accelerator == "cuda"), from);
    outcome.test_loss = trainer.test(module, data_of(0, false)).loaders.at(0).at(0).second;
    outcome.predictions = trainer.predict(module, data_of(0, false)).loaders.at(0)["y"].cpu();
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  for (auto& [name, value] : weights(*module)) outcome.weights[name] = value.cpu();
  outcome.rows = logger->rows;
  return outcome;
}

void check_close(const Outcome& cpu, const Outcome& gpu, double tolerance) {
  CHECK(cpu.error.empty() == gpu.error.empty());
  CHECK(cpu.report.global_step == gpu.report.global_step);
  for (const auto& [name, value] : cpu.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value.to(at::kDouble), gpu.weights.at(name).to(at::kDouble), tolerance, tolerance));
  }
  REQUIRE(cpu.rows.size() == gpu.rows.size());
  for (size_t i = 0; i < cpu.rows.size(); ++i) {
    CHECK(cpu.rows[i].step == gpu.rows[i].step);
    REQUIRE(cpu.rows[i].metrics.size() == gpu.rows[i].metrics.size());
    for (size_t m = 0; m < cpu.rows[i].metrics.size(); ++m) {
      CAPTURE(cpu.rows[i].step, cpu.rows[i].metrics[m].first);
      CHECK(cpu.rows[i].metrics[m].first == gpu.rows[i].metrics[m].first);
      const double a = cpu.rows[i].metrics[m].second, b = gpu.rows[i].metrics[m].second;
      CHECK(((std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance * (1 + std::abs(a))));
    }
  }
  REQUIRE(cpu.predictions.defined() == gpu.predictions.defined());
  if (cpu.predictions.defined())
    CHECK(at::allclose(cpu.predictions.to(at::kDouble), gpu.predictions.to(at::kDouble), tolerance, tolerance));
  CHECK(cpu.test_loss.has_value() == gpu.test_loss.has_value());
  if (cpu.test_loss) CHECK(std::abs(*cpu.test_loss - *gpu.test_loss) <= tolerance);
}

template <class M = Planned>
void check_equal(const Change& change, double tolerance = 1e-5, int64_t workers = 0) {
  const TemporaryFolder on_cpu, on_gpu;
  check_close(train<M>("cpu", on_cpu, change), train<M>("cuda", on_gpu, change, workers), tolerance);
}

}  // namespace

TEST_CASE(
    "on a GPU, fit, validate, test and predict give what the CPU gives: as it is, clipped, accumulated, with workers "
    "and pinned memory",
    "[gpu]") {
  require_gpus(1);
  check_equal({});
  check_equal([](TrainerOptions& o) {
    o.gradient_clip_val = 0.3;
    o.log_grad_norm = true;
  });
  check_equal([](TrainerOptions& o) {
    o.gradient_clip_val = 0.05;
    o.gradient_clip_algorithm = ClipAlgorithm::value;
    o.val_check_interval = 4;
  });
  check_equal([](TrainerOptions& o) { o.accumulate_grad_batches = 3; }, 1e-5, 2);
  check_equal([](TrainerOptions& o) { o.log_every_n_steps = 1; }, 1e-5, 3);
  check_equal([](TrainerOptions& o) { o.capture = o.accelerator == "cuda"; }, 1e-5, 2);
}

TEST_CASE("on a GPU, each precision trains as on the CPU, within what the format holds", "[gpu]") {
  require_gpus(1);
  const auto in = [](const char* precision, double tolerance) {
    CAPTURE(precision);
    check_equal([precision](TrainerOptions& o) { o.precision = Spec<Precision>(precision); }, tolerance);
  };
  in("64-true", 1e-12);
  in("bf16-true", 0.1);
  in("bf16-mixed", 0.1);
}

TEST_CASE("on a GPU, 16-mixed skips the steps and has the scales that it has on the CPU", "[gpu]") {
  require_gpus(1);
  for (const double scale : {1024.0, 16777216.0}) {
    CAPTURE(scale);
    // Rows hold the scale and the number of skipped steps, which are powers of two and integers.
    const Change change = [](TrainerOptions& o) { o.log_every_n_steps = 1; };
    const auto precision = [scale] {
      return std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = scale, .growth_interval = 5});
    };
    const TemporaryFolder on_cpu, on_gpu;
    const Outcome cpu = train<Planned>("cpu", on_cpu, change, 0, {}, precision()),
                  gpu = train<Planned>("cuda", on_gpu, change, 0, {}, precision());
    check_close(cpu, gpu, 0.02);
    const auto of = [](const Outcome& outcome, const std::string& name) {
      std::vector<double> values;
      for (const auto& row : outcome.rows)
        for (const auto& [metric, value] : row.metrics)
          if (metric == name) values.push_back(value);
      return values;
    };
    for (const char* name : {"loss_scale", "skipped_steps"}) {
      CAPTURE(name);
      CHECK(of(cpu, name).size() >= 30);
      CHECK(of(cpu, name) == of(gpu, name));
    }
    CHECK((of(gpu, "skipped_steps").front() > 0) == (scale > 65536));
    CHECK(of(gpu, "skipped_steps").back() > 0);
  }
}

namespace {

// The weights after each batch.
struct Watching : Callback {
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    std::map<std::string, Tensor> now;
    for (auto& [name, value] : weights(run.module())) now[name] = value.cpu();
    after.push_back(std::move(now));
  }
  void on_train_epoch_start(RunContext& run) override {
    std::map<std::string, Tensor> now;
    for (auto& [name, value] : weights(run.module())) now[name] = value.cpu();
    at_epochs.push_back(std::move(now));
  }
  std::vector<std::map<std::string, Tensor>> after, at_epochs;
};

struct Policed {
  std::vector<std::map<std::string, Tensor>> after, at_epochs;
  std::map<int64_t, std::map<std::string, Tensor>> saved;  // by step
  std::string noted, error;
  int64_t global_step = 0;
};

Policed train_policed(const std::string& accelerator, const std::string& policy) {
  const TemporaryFolder folder;
  at::manual_seed(21);
  TrainerOptions options = quiet(folder);
  options.accelerator = accelerator;
  options.max_epochs = 2;
  options.gradient_clip_val = 0.5;
  options.on_nonfinite = *enum_from<OnNonFinite>(policy);
  TrainerComponents components;
  components.seed = 5;
  const auto watching = std::make_shared<Watching>();
  components.add(watching);
  ModelCheckpoint::Options every;
  every.every_n_train_steps = 3;
  every.save_top_k = -1;
  components.add(std::make_shared<ModelCheckpoint>(every));
  Policed run;
  try {
    run.global_step = Trainer(options, components).fit(std::make_shared<Faulty>(), data_of(0, false)).global_step;
  } catch (const NonFiniteError& error) {
    run.error = error.what();
  }
  run.after = watching->after;
  run.at_epochs = watching->at_epochs;
  const auto run_dir = folder / "fulgur_logs/version_0";
  auto all = list_checkpoints(run_dir / "checkpoints");
  for (const auto& summary : all) {
    auto& one = run.saved[summary.global_step];
    for (const auto& [name, value] : read_checkpoint(summary.path).module) one[name] = value;
  }
  run.noted = read_text(run_dir / "nonfinite.jsonl");
  return run;
}

void check_same(const std::map<std::string, Tensor>& cpu, const std::map<std::string, Tensor>& gpu) {
  for (const auto& [name, value] : cpu) CHECK(at::allclose(value, gpu.at(name), 1e-5, 1e-6));
}

int64_t number_in(const std::string& text, const std::string& field) {
  const size_t at = text.find("\"" + field + "\":");
  REQUIRE(at != std::string::npos);
  return std::strtoll(text.c_str() + at + field.size() + 3, nullptr, 10);
}

}  // namespace

TEST_CASE("on a GPU, each policy for losses that are not finite acts as on the CPU, once the row has arrived",
          "[gpu]") {
  require_gpus(1);
  const std::string policy = GENERATE("raise", "skip", "stop", "rollback");
  CAPTURE(policy);
  const Policed cpu = train_policed("cpu", policy), gpu = train_policed("cuda", policy);
  // The bad batch, and the steps of the device when its row is judged: after kLater more batches, or at the epoch's
  // end.
  constexpr int64_t kBad = 8, kEpoch = 12;
  constexpr int64_t kJudged = std::min<int64_t>(kBad + 1 + fulgur::detail::StepRows::kLater, kEpoch);
  if (policy == "skip") {
    // The device decides by itself, in the step; the row reports it.
    for (const char* field : {"epoch", "first_batch", "last_batch"})
      CHECK(number_in(gpu.noted, field) == number_in(cpu.noted, field));
    CHECK(gpu.error.empty());
    CHECK(gpu.global_step == cpu.global_step);
    REQUIRE(gpu.after.size() == cpu.after.size());
    for (size_t i = 0; i < cpu.after.size(); ++i) check_same(cpu.after[i], gpu.after[i]);
  } else {
    for (const char* field : {"epoch", "first_batch", "last_batch"})
      CHECK(number_in(cpu.noted, field) == number_in(gpu.noted, field));
    CHECK(number_in(gpu.noted, "last_batch") == kBad);
    CHECK(number_in(cpu.noted, "global_step") == kBad);
    CHECK(number_in(gpu.noted, "global_step") == kBad + 1);  // after the batch, whose step was made
    CHECK((policy == "raise") == !cpu.error.empty());
    CHECK((policy == "raise") == !gpu.error.empty());
    for (size_t i = 0; i < kBad; ++i) check_same(cpu.after.at(i), gpu.after.at(i));
  }
  if (policy == "raise" || policy == "stop") CHECK(static_cast<int64_t>(gpu.after.size()) == kJudged);
  if (policy == "stop") CHECK(gpu.global_step == kJudged);
  if (policy == "rollback") {
    // To the checkpoint of step 6, in both; the device's second epoch begins with it.
    check_same(cpu.saved.at(6), gpu.saved.at(6));
    check_same(gpu.saved.at(6), gpu.at_epochs.at(1));
    CHECK(gpu.global_step == 24);
    return;
  }
  REQUIRE(cpu.saved.size() == gpu.saved.size());
  for (const auto& [step, saved] : cpu.saved) check_same(saved, gpu.saved.at(step));
}

TEST_CASE("on a GPU, a run that was stopped and resumes from its checkpoint ends with the bits of one that was not",
          "[gpu]") {
  require_gpus(1);
  const bool captures = GENERATE(false, true);
  const int64_t stop = GENERATE(5, 12, 20);
  CAPTURE(captures, stop);
  const auto steps = [&](int64_t most) {
    return [captures, most](TrainerOptions& o) {
      o.max_steps = most;
      o.capture = captures;
      o.val_check_interval = 4;
    };
  };
  const TemporaryFolder whole_folder, folder;
  const Outcome whole = train<Planned>("cuda", whole_folder, steps(-1), 2);
  train<Planned>("cuda", folder, steps(stop), 2);
  const Outcome rest = train<Planned>("cuda", folder, steps(-1), 2, "last");
  CHECK(whole.report.global_step == rest.report.global_step);
  CHECK(same_weights(whole.weights, rest.weights));
}

TEST_CASE("on a GPU, a checkpoint that is written while training continues holds the weights of its step", "[gpu]") {
  require_gpus(1);
  // Saved after each step, in the background; any of them continues to the same end.
  const TemporaryFolder folder;
  const Outcome whole = train<Planned>("cuda", folder, {});
  const TemporaryFolder saving;
  at::manual_seed(21);
  TrainerOptions options = quiet(saving);
  options.max_epochs = 3;
  options.log_every_n_steps = 3;
  options.num_sanity_val_steps = 1;
  options.accelerator = "cuda";
  TrainerComponents components;
  components.seed = 5;
  ModelCheckpoint::Options every;
  every.every_n_train_steps = 2;
  every.save_top_k = -1;
  components.add(std::make_shared<ModelCheckpoint>(every));
  const auto module = std::make_shared<Planned>();
  Trainer(options, components).fit(module, data_of(2, true));
  std::map<std::string, Tensor> ends;
  for (auto& [name, value] : weights(*module)) ends[name] = value.cpu();
  CHECK(same_weights(whole.weights, ends));
  size_t looked_at = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(saving.path())) {
    if (!entry.is_directory() || entry.is_symlink() || entry.path().extension() != ".ckpt") continue;
    CAPTURE(entry.path());
    at::manual_seed(3);
    const auto resumed = std::make_shared<Planned>();
    TrainerComponents again;
    again.seed = 5;
    const TemporaryFolder elsewhere;
    TrainerOptions rest = options;
    rest.default_root_dir = elsewhere.path();
    Trainer(rest, again).fit(resumed, data_of(0, true), CheckpointChoice(entry.path().string()));
    ends.clear();
    for (auto& [name, value] : weights(*resumed)) ends[name] = value.cpu();
    CHECK(same_weights(whole.weights, ends));
    ++looked_at;
  }
  CHECK(looked_at >= 15);
}

TEST_CASE("on a GPU, running out of memory in a validation is reported with advice for an evaluation", "[gpu]") {
  require_gpus(1);
  struct TooLarge : Planned {
    Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
      (void)at::empty({int64_t{1} << 50}, batch[0].options());
      return {};
    }
  };
  const auto said_in = [](const std::function<void(Trainer&)>& run) {
    const TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.accelerator = "cuda";
    std::string said;
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &said);
    Trainer trainer(options);
    CHECK_THROWS_WITH(run(trainer), Catch::Matchers::ContainsSubstring("out of memory"));
    log::set_sink({}, nullptr);
    return said;
  };
  for (const std::string& said :
       {said_in([](Trainer& trainer) { trainer.fit(std::make_shared<TooLarge>(), regression_data()); }),
        said_in([](Trainer& trainer) { trainer.validate(std::make_shared<TooLarge>(), regression_data()); })}) {
    CHECK_THAT(said, Catch::Matchers::ContainsSubstring("data.eval_batch_size"));
    CHECK_THAT(said, !Catch::Matchers::ContainsSubstring("accumulate_grad_batches"));
  }
}

TEST_CASE("on a GPU, a step that needs more memory than there is ends the run with the reason, and the next run trains",
          "[gpu]") {
  require_gpus(1);
  struct TooLarge : Planned {
    StepOutput training_step(const Batch& batch, int64_t index) override {
      if (index == 3) (void)at::empty({int64_t{1} << 50}, batch[0].options());
      return Planned::training_step(batch, index);
    }
  };
  const TemporaryFolder folder, after, before;
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  const Outcome first = train<Planned>("cuda", before, {});
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<TooLarge>(), data_of(2, true)),
                    Catch::Matchers::ContainsSubstring("out of memory"));
  CHECK(same_weights(first.weights, train<Planned>("cuda", after, {}).weights));
}

}  // namespace gpu_equals_cpu_test
