#include "fulgur/callbacks/batch_size_scheduler.h"

#include <ATen/ops/arange.h>

#include "fulgur/callbacks/gradient_accumulation_scheduler.h"
#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "callbacks/scored.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/optim/lbfgs.h"
#include "support/expect_error.h"

namespace batch_size_scheduler_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = BatchSizeScheduler::Options;
using Change = std::function<void(TrainerOptions&, TrainerComponents&)>;

Interval length(const char* text) { return *Interval::parse(text); }
Options at(const std::vector<std::pair<const char*, int64_t>>& changes, BatchSizeBy by = BatchSizeBy::batch) {
  Options options{.by = by};
  for (const auto& [position, size] : changes) options.schedule.push_back({length(position), size});
  return options;
}

/// Notes the samples of each batch, and the steps that are planned.
struct Noting : SelfPlanned {
  using SelfPlanned::SelfPlanned;
  std::vector<int64_t> sizes;
  std::vector<double> firsts;  ///< the first number of each sample, in order
  std::optional<int64_t> planned;
  OptimizerPlan configure_optimizers() override {
    planned = run().extent().estimated_steps();
    return SelfPlanned::configure_optimizers();
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    sizes.push_back(batch.size());
    const Tensor column = batch[0].select(1, 0).to(at::kDouble).contiguous();
    firsts.insert(firsts.end(), column.const_data_ptr<double>(), column.const_data_ptr<double>() + column.numel());
    return SelfPlanned::training_step(batch, batch_idx);
  }
};

struct Trained {
  std::shared_ptr<Noting> module;
  FitReport report;
};

// 40 samples, in batches of 4.
Trained train(const Options& options, const Change& change = {}, const DataSource& data = regression_data(40, 0),
              const CheckpointChoice& from = {}) {
  static TemporaryFolder folder;
  TrainerOptions trainer = quiet(folder);
  trainer.max_epochs = 3;
  TrainerComponents components;
  components.seed = 3;
  components.add(std::make_shared<BatchSizeScheduler>(options));
  if (change) change(trainer, components);
  at::manual_seed(4);
  Trained run{.module = std::make_shared<Noting>(0.25), .report = {}};
  run.report = Trainer(trainer, components).fit(run.module, data, from);
  return run;
}

std::vector<int64_t> sizes(const Options& options, const Change& change = {}) {
  const Trained run = train(options, change);
  CHECK(run.module->planned == run.report.global_step);
  return run.module->sizes;
}

std::vector<int64_t> repeated(const std::vector<std::pair<int64_t, int64_t>>& runs) {
  std::vector<int64_t> all;
  for (const auto& [count, value] : runs) all.insert(all.end(), static_cast<size_t>(count), value);
  return all;
}

std::vector<double> sorted(std::vector<double> values, size_t from, size_t count) {
  std::vector<double> part(values.begin() + static_cast<std::ptrdiff_t>(from),
                           values.begin() + static_cast<std::ptrdiff_t>(from + count));
  std::ranges::sort(part);
  return part;
}

template <class Error>
std::string error_of(const Options& options, const Change& change = {},
                     const DataSource& data = regression_data(40, 0)) {
  return message_of<Error>([&] { train(options, change, data); });
}

}  // namespace

TEST_CASE("BatchSizeScheduler: batches have the size that is due when their epoch begins") {
  CHECK(sizes(at({{"1ep", 8}, {"2ep", 20}})) == repeated({{10, 4}, {5, 8}, {2, 20}}));
  CHECK(sizes(at({{"0ep", 20}})) == repeated({{6, 20}}));
  // In the middle of an epoch, and by steps: from the next epoch on.
  CHECK(sizes(at({{"0.5ep", 8}})) == repeated({{10, 4}, {10, 8}}));
  CHECK(sizes(at({{"3st", 8}, {"15st", 10}})) == repeated({{10, 4}, {5, 8}, {4, 10}}));
  CHECK(sizes(at({{"1ep", 16}})) == std::vector<int64_t>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 16, 16, 8, 16, 16, 8});
}

TEST_CASE("BatchSizeScheduler: growth by a factor, up to the maximum") {
  CHECK(sizes({.every = length("1ep"), .max = 8}) == repeated({{10, 4}, {10, 8}}));
  CHECK(sizes({.every = length("1ep"), .factor = 5, .max = 40}) == repeated({{10, 4}, {2, 20}, {1, 40}}));
  CHECK(sizes({.every = length("1ep"), .factor = 3, .max = 20}) == repeated({{10, 4}, {3, 12}, {1, 4}, {2, 20}}));
  CHECK(sizes({.every = length("10st"), .max = 8}) == repeated({{10, 4}, {10, 8}}));
}

TEST_CASE("BatchSizeScheduler: each sample is trained on once per epoch") {
  const Trained run = train(at({{"1ep", 8}, {"2ep", 7}}));
  const std::vector<double>& all = run.module->firsts;
  REQUIRE(all.size() == 120);
  CHECK(sorted(all, 0, 40) == sorted(all, 40, 40));
  CHECK(sorted(all, 0, 40) == sorted(all, 80, 40));
  // The order is that of the epoch, whatever the size of its batches is.
  const Trained plain = train(at({{"100ep", 8}}));
  CHECK(all == plain.module->firsts);
}

TEST_CASE("BatchSizeScheduler: by accumulation, at exact steps and positions within an epoch") {
  const auto steps = [](const Options& options) {
    const Trained run = train(options);
    CHECK(run.module->sizes == repeated({{30, 4}}));
    CHECK(run.module->planned == run.report.global_step);
    return run.report.global_step;
  };
  constexpr auto kBy = BatchSizeBy::accumulation;
  CHECK(steps(at({{"1ep", 8}, {"2ep", 20}}, kBy)) == 10 + 5 + 2);
  CHECK(steps(at({{"0ep", 40}}, kBy)) == 3);
  CHECK(steps(at({{"4st", 12}}, kBy)) == 4 + 2 + 4 + 4);
  CHECK(steps(at({{"0.5ep", 20}}, kBy)) == 5 + 1 + 2 + 2);
  CHECK(steps({.every = length("1ep"), .max = 16, .by = kBy}) == 10 + 5 + 3);
  // The same as with another callback that changes the windows at the same places.
  const Trained by_hand = train(at({{"100ep", 8}}, kBy), [](TrainerOptions&, TrainerComponents& components) {
    components.callbacks.clear();
    components.add(std::make_shared<GradientAccumulationScheduler>(
        GradientAccumulationScheduler::Options{.scheduling = {{"1ep", 2}, {"2ep", 5}}}));
  });
  CHECK(same_weights(weights(*by_hand.module), weights(*train(at({{"1ep", 8}, {"2ep", 20}}, kBy)).module)));
}

TEST_CASE("BatchSizeScheduler: limits, validations and schedules follow the epoch's length") {
  // max_steps is reached inside the second epoch.
  CHECK(sizes(at({{"1ep", 8}}), [](TrainerOptions& o, TrainerComponents&) { o.max_steps = 12; }) ==
        repeated({{10, 4}, {2, 8}}));
  CHECK(sizes(at({{"1ep", 8}}), [](TrainerOptions& o, TrainerComponents&) { o.limit_train_batches = 0.5; }) ==
        repeated({{5, 4}, {4, 8}}));
  CHECK(sizes(at({{"1ep", 8}}), [](TrainerOptions& o, TrainerComponents&) { o.limit_train_batches = 7; }) ==
        repeated({{7, 4}, {10, 8}}));
  CHECK(sizes(at({{"1ep", 8}}), [](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = 3; }) ==
        repeated({{10, 4}, {10, 8}}));
  struct Fractions : Callback {
    std::vector<double> epochs, parts;
    std::vector<int64_t> validated_at;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      epochs.push_back(run.progress().epochs_done(run.num_batches(RunningStage::train)));
      parts.push_back(*run.extent().progress_fraction());
    }
    void on_validation_start(RunContext& run) override {
      validated_at.push_back(run.progress().batches_total.completed);
    }
  };
  const auto fractions = std::make_shared<Fractions>();
  train(
      at({{"1ep", 8}}),
      [&](TrainerOptions& o, TrainerComponents& components) {
        o.max_epochs = 2;
        o.val_check_interval = 0.5;
        components.add(fractions);
      },
      regression_data(40, 12));
  REQUIRE(fractions->epochs.size() == 15);
  CHECK(fractions->epochs[4] == 0.5);
  CHECK(fractions->epochs[11] == 1.4);
  CHECK(fractions->parts[11] == 0.7);
  CHECK(fractions->validated_at == std::vector<int64_t>{5, 10, 12, 14});
}

TEST_CASE("BatchSizeScheduler: a resumed fit equals one that is not interrupted") {
  for (const Options& options :
       {at({{"1ep", 8}, {"2ep", 20}}), at({{"4st", 8}, {"12st", 20}}), at({{"4st", 12}}, BatchSizeBy::accumulation),
        at({{"0.5ep", 8}, {"1.3ep", 16}}, BatchSizeBy::accumulation)}) {
    const Trained whole = train(options);
    for (const int64_t stop : {2, 4, 7, 10, 11, 13}) {
      if (stop >= whole.report.global_step) continue;
      CAPTURE(enum_text(options.by), options.schedule.front().at.text(), stop);
      const Trained first = train(options, [&](TrainerOptions& o, TrainerComponents&) { o.max_steps = stop; });
      REQUIRE(first.report.global_step == stop);
      const Trained second = train(options, {}, regression_data(40, 0), first.report.last_checkpoint->string());
      CHECK(second.report.global_step == whole.report.global_step);
      CHECK(second.module->planned == whole.report.global_step);
      CHECK(same_weights(weights(*second.module), weights(*whole.module)));
      std::vector<double> read = first.module->firsts;
      read.insert(read.end(), second.module->firsts.begin(), second.module->firsts.end());
      CHECK(read == whole.module->firsts);
    }
  }
}

TEST_CASE("BatchSizeScheduler: a stream, and its position") {
  const Options options = at({{"1ep", 8}, {"2ep", 20}});
  const Trained whole = train(options, {}, DataSource{regression_stream(40)});
  CHECK(whole.module->sizes == repeated({{10, 4}, {5, 8}, {2, 20}}));
  for (const int64_t stop : {3, 10, 12}) {
    CAPTURE(stop);
    const Trained first = train(
        options, [&](TrainerOptions& o, TrainerComponents&) { o.max_steps = stop; }, DataSource{regression_stream(40)});
    const Trained second =
        train(options, {}, DataSource{regression_stream(40)}, first.report.last_checkpoint->string());
    CHECK(second.report.global_step == 17);
    CHECK(same_weights(weights(*second.module), weights(*whole.module)));
  }
}

TEST_CASE("BatchSizeScheduler: a loader that is used again begins with its own batch size") {
  const auto stream = regression_stream(40);
  const Change one_epoch = [](TrainerOptions& o, TrainerComponents&) { o.max_epochs = 2; };
  CHECK(train(at({{"1ep", 8}}), one_epoch, DataSource{stream}).module->sizes == repeated({{10, 4}, {5, 8}}));
  CHECK(train(at({{"100ep", 8}}), one_epoch, DataSource{stream}).module->sizes == repeated({{20, 4}}));
  const Change without = [](TrainerOptions& o, TrainerComponents& components) {
    o.max_epochs = 1;
    components.callbacks.clear();
  };
  train(at({{"1ep", 8}}), one_epoch, DataSource{stream});
  CHECK(train(at({{"1ep", 8}}), without, DataSource{stream}).module->sizes == repeated({{10, 4}}));
}

TEST_CASE("BatchSizeScheduler: a loader that has grown is reset where another run combines or evaluates it") {
  const auto stream = regression_stream(40);
  const Change two_epochs = [](TrainerOptions& o, TrainerComponents&) { o.max_epochs = 2; };
  const Change without = [](TrainerOptions& o, TrainerComponents& components) {
    o.max_epochs = 1;
    components.callbacks.clear();
  };
  REQUIRE(train(at({{"1ep", 8}}), two_epochs, DataSource{stream}).module->sizes.back() == 8);
  SECTION("combined with another") {
    DataSource both;
    both.train = {stream, regression_stream(40)};
    CHECK(train(at({{"1ep", 8}}), without, both).module->sizes == repeated({{10, 4}}));
  }
  SECTION("evaluated") {
    struct Evaluated : SelfPlanned {
      std::vector<int64_t> sizes;
      Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
        sizes.push_back(batch.size());
        return SelfPlanned::validation_step(batch, batch_idx, loader_idx);
      }
    };
    const TemporaryFolder folder;
    DataSource data;
    data.validation = {stream};
    const auto module = std::make_shared<Evaluated>();
    Trainer(quiet(folder)).validate(module, data);
    CHECK(module->sizes == repeated({{10, 4}}));
  }
}

TEST_CASE("BatchSizeScheduler: the rest of an epoch follows the loader's batch size if that has changed") {
  // Both plans have a size of 8: 4, 8, 16 and 32, or 8, 16 and 32.
  const Options options{.every = length("1ep"), .max = 32};
  const Trained first = train(options, [](TrainerOptions& o, TrainerComponents&) { o.max_steps = 12; });
  REQUIRE(first.module->sizes == repeated({{10, 4}, {2, 8}}));
  const Trained second = train(options, {}, regression_data(40, 0, 8), first.report.last_checkpoint->string());
  CHECK(second.module->sizes == std::vector<int64_t>{16, 8, 32, 8});
}

TEST_CASE("BatchSizeScheduler: a size beyond the data is reported, and the real one is shown") {
  const LogLines lines;
  CHECK(train(at({{"1ep", 100}})).module->sizes == repeated({{10, 4}, {2, 40}}));
  CHECK(lines.count("a batch size of 100 is planned, but an epoch has only 40 samples") == 1);
  CHECK(lines.count("[trainer.large_batch_size]") == 1);
  CHECK(lines.count("batch size: 40 samples instead of 4 in epoch 1") == 1);
}

TEST_CASE("BatchSizeScheduler: positions that the fit did not reach are reported") {
  const auto reports = [](const Options& options, const char* text) {
    const LogLines lines;
    train(options);
    CHECK(lines.count(text) == 1);
    return lines.count("[batch_size_scheduler.not_reached]");
  };
  // Three epochs of 10, 5 and 5 steps.
  CHECK(reports(at({{"1ep", 8}, {"6ep", 20}}),
                "after 20 steps in 3 epochs, before the batch size became 20 (at 6ep)") == 1);
  CHECK(reports(at({{"1ep", 8}, {"2.5ep", 20}}), "before the batch size became 20 (at 2.5ep)") == 1);
  CHECK(reports(at({{"1ep", 8}, {"2ep", 20}}), "stopped: ") == 0);
  CHECK(reports(at({{"4st", 8}, {"90st", 20}}, BatchSizeBy::accumulation),
                "before the batch size became 20 (at 90st)") == 1);
  CHECK(reports(at({{"2.5ep", 20}}, BatchSizeBy::accumulation), "stopped: ") == 0);
}

TEST_CASE("BatchSizeScheduler: by accumulation, each new length of a window is reported") {
  const LogLines lines;
  train(at({{"4st", 12}, {"8st", 20}}, BatchSizeBy::accumulation));
  CHECK(lines.count("batch size: 12 samples (3 batches) instead of 4 from step 5 on") == 1);
  CHECK(lines.count("batch size: 20 samples (5 batches) instead of 12 from step 9 on") == 1);
  CHECK(lines.count("batch size: ") == 2);
}

TEST_CASE("BatchSizeScheduler: a new batch size is reported once, against that of the epoch before") {
  const Options options = at({{"2ep", 8}, {"3ep", 20}});
  const auto reports = [&](const Change& change, const CheckpointChoice& from = {}) {
    const LogLines lines;
    const Trained run = train(options, change, regression_data(40, 0), from);
    CHECK(run.module->sizes.back() == 20);
    CHECK(lines.count("batch size: 20 samples instead of 8 in epoch 3") == 1);
    return std::pair(lines.count("batch size: "), lines.count("batch size: 8 samples instead of 4 in epoch 2"));
  };
  const int reloads = GENERATE(0, 1);
  CAPTURE(reloads);
  const Change four_epochs = [&](TrainerOptions& o, TrainerComponents&) {
    o.max_epochs = 4;
    o.reload_dataloaders_every_n_epochs = reloads;
  };
  using Counts = std::pair<size_t, size_t>;
  CHECK(reports(four_epochs) == Counts{2, 1});
  // From the end of an epoch, and from inside the next one.
  for (const int64_t stop : {20, 22}) {
    CAPTURE(stop);
    const Trained part = train(options, [&](TrainerOptions& o, TrainerComponents& components) {
      four_epochs(o, components);
      o.max_steps = stop;
    });
    CHECK(reports(four_epochs, part.report.last_checkpoint->string()) == (stop == 20 ? Counts{2, 1} : Counts{1, 0}));
  }
}

TEST_CASE("BatchSizeScheduler: invalid options are errors") {
  const auto error = [](const Options& options) {
    return message_of<ConfigError>([&] { BatchSizeScheduler{options}; });
  };
  CHECK_THAT(error({}), ContainsSubstring("neither is"));
  Options both = at({{"1ep", 8}});
  both.every = length("1ep");
  both.max = 8;
  CHECK_THAT(error(both), ContainsSubstring("both are"));
  CHECK_THAT(error({.every = length("1ep")}), ContainsSubstring("every needs max"));
  CHECK_THAT(error({.every = length("0ep"), .max = 8}), ContainsSubstring("every must be longer than 0; got 0ep"));
  Options stray = at({{"1ep", 8}});
  stray.max = 8;
  CHECK_THAT(error(stray), ContainsSubstring("max belongs to every"));
  CHECK_THAT(error({.every = length("1ep"), .factor = 1, .max = 8}), ContainsSubstring("factor"));
  CHECK_THAT(error(at({{"1ep", 0}})), ContainsSubstring("batch_size"));
  CHECK_THAT(error(at({{"10sa", 8}})), ContainsSubstring("10sa"));
  CHECK_THAT(error(at({{"1ep", 8}, {"5st", 16}})), ContainsSubstring("must be in the same unit"));
  CHECK_THAT(error(at({{"1ep", 8}, {"1ep", 16}})), ContainsSubstring("occurs twice in schedule: 1ep"));
}

TEST_CASE("BatchSizeScheduler: what a run cannot do is refused before it begins") {
  constexpr auto kBy = BatchSizeBy::accumulation;
  CHECK_THAT(error_of<ConfigError>({.every = length("1ep"), .max = 4}),
             ContainsSubstring("max must be larger than the batch size of the loader; got 4"));
  CHECK_THAT(error_of<ConfigError>(at({{"1ep", 6}}, kBy)), ContainsSubstring("a multiple of 4"));
  CHECK_THAT(error_of<ConfigError>(at({{"1ep", 8}}, kBy),
                                   [](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = 2; }),
             ContainsSubstring("accumulate_grad_batches must be 1, got 2"));
  CHECK_THAT(error_of<ConfigError>(at({{"1ep", 8}}, kBy),
                                   [](TrainerOptions&, TrainerComponents& components) {
                                     components.add(std::make_shared<GradientAccumulationScheduler>(
                                         GradientAccumulationScheduler::Options{.scheduling = {{"4", 2}}}));
                                   }),
             ContainsSubstring("Remove one of the two"));
  CHECK_THAT(error_of<ConfigError>(at({{"1ep", 8}}),
                                   [](TrainerOptions&, TrainerComponents& components) {
                                     CallbackFilter filter;
                                     filter.from = length("1ep");
                                     components.callbacks.back()->set_common_options(filter);
                                   }),
             ContainsSubstring("must not have every, from, until or once"));
  CHECK_THAT(error_of<ConfigError>(
                 at({{"1ep", 20}}), [](TrainerOptions& o, TrainerComponents&) { o.val_check_interval = 4; },
                 regression_data(40, 12)),
             ContainsSubstring("would never run, since an epoch has 2 batches"));
  // Without a validation, no interval is too long.
  CHECK(sizes(at({{"1ep", 20}}), [](TrainerOptions& o, TrainerComponents&) { o.val_check_interval = 4; }) ==
        repeated({{10, 4}, {4, 20}}));
  const Trained off = train(
      at({{"1ep", 20}}),
      [](TrainerOptions& o, TrainerComponents&) { o.val_check_interval = 4, o.limit_val_batches = 0; },
      regression_data(40, 12));
  CHECK(off.report.global_step == 14);
  std::vector<CombinedLoader::Named> parts{{"a", regression_stream(40)}};
  CHECK_THAT(
      error_of<ConfigError>(at({{"1ep", 20}}), {}, DataSource{std::make_shared<CombinedLoader>(std::move(parts))}),
      ContainsSubstring("which the training loader cannot do"));
  struct Closure : Noting {
    OptimizerPlan configure_optimizers() override { return std::make_shared<LBFGS>(LBFGS::Options{}); }
  };
  CHECK_THAT(message_of<ConfigError>([] {
               const TemporaryFolder folder;
               TrainerComponents components;
               components.add(std::make_shared<BatchSizeScheduler>(at({{"1ep", 8}}, kBy)));
               Trainer(quiet(folder), components).fit(std::make_shared<Closure>(), regression_data(40, 0));
             }),
             ContainsSubstring("a callback that changes how many batches make a step"));
  // Too few samples for a batch of a later epoch.
  const auto dropping = std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(40)),
                                                     DataLoaderOptions{.batch_size = 4, .drop_last = true});
  CHECK_THAT(error_of<DataError>(at({{"2ep", 64}}), {}, DataSource{dropping}),
             ContainsSubstring("do not fill a batch of 64"));
}

}  // namespace batch_size_scheduler_test
