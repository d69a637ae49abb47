// Norms of gradients, weights and updates equal those of a hand-written loop, bit for bit.
#include "fulgur/callbacks/gradient_monitor.h"

#include "callbacks/scored.h"
#include "trainer/checkpointing/interrupted.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <thread>

#include "fulgur/strategies/half_precision.h"
#include "fulgur/strategies/mixed_precision.h"
#include "support/expect_error.h"

namespace gradient_monitor_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Values = std::vector<std::pair<int64_t, double>>;

namespace {

constexpr int64_t kSamples = 32, kBatch = 4, kBatches = 8;

struct AdamWModule : BoringModule {
  using BoringModule::BoringModule;
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.01;
    return std::make_shared<AdamW>(options);
  }
};

double norm_of(const std::vector<Tensor>& tensors, double order) {
  std::vector<Tensor> norms;
  for (const Tensor& tensor : tensors) norms.push_back(at::linalg_vector_norm(tensor, order));
  return norms.size() == 1 ? norms.front().item<double>()
                           : at::linalg_vector_norm(at::stack(norms), order).item<double>();
}

double ratio_of(const std::vector<Tensor>& after, const std::vector<Tensor>& before, double order) {
  std::vector<Tensor> changes, old, moved;
  for (size_t i = 0; i < after.size(); ++i) {
    moved.push_back(at::linalg_vector_norm(after[i] - before[i], order));
    old.push_back(at::linalg_vector_norm(before[i], order));
  }
  if (moved.size() == 1) return (moved[0] / old[0]).item<double>();
  return (at::linalg_vector_norm(at::stack(moved), order) / at::linalg_vector_norm(at::stack(old), order))
      .item<double>();
}

/// What the monitor logs, by name, without any part of it: AdamW by ATen's fused kernel.
std::map<std::string, Values> by_hand(int64_t accumulate, double order, const std::string& text, int64_t every) {
  at::manual_seed(7);
  BoringModule model;
  const Batch data = regression(kSamples);
  const std::vector<std::string> names{"first.weight", "first.bias", "second.weight", "second.bias"};
  std::vector<Tensor> params = model.parameters(), averages, squares, steps;
  for (const Tensor& p : params) {
    averages.push_back(at::zeros_like(p));
    squares.push_back(at::zeros_like(p));
    steps.push_back(at::zeros({}));
  }
  std::map<std::string, Values> logged;
  int64_t step = 0;
  for (int64_t b = 0; b < kBatches; ++b) {
    const int64_t begin = b / accumulate * accumulate, window = std::min(accumulate, kBatches - begin);
    Tensor loss =
        at::mse_loss(model.forward(data[0].narrow(0, b * kBatch, kBatch)), data[1].narrow(0, b * kBatch, kBatch));
    if (window > 1) loss = loss / static_cast<double>(window);
    loss.backward();
    if (b - begin + 1 != window) continue;
    at::NoGradGuard no_grad;
    std::vector<Tensor> grads, before;
    for (const Tensor& p : params) grads.push_back(p.grad()), before.push_back(p.detach().clone());
    for (Tensor& s : steps) s.add_(1);
    const std::vector<Tensor> raw = [&] {
      std::vector<Tensor> copies;
      for (const Tensor& g : grads) copies.push_back(g.clone());
      return copies;
    }();
    at::_fused_adamw_(params, grads, averages, squares, {}, steps, 0.01, 0.9, 0.999, 0.01, 1e-8, false, false,
                      std::nullopt, std::nullopt);
    for (Tensor& p : params) p.mutable_grad().reset();
    if (++step % every != 0) continue;
    const auto add = [&](const std::string& kind, const std::string& name, double value) {
      logged[kind + name].emplace_back(step, value);
    };
    const auto add_all = [&](const std::string& of, size_t first, size_t count) {
      const auto part = [&](const std::vector<Tensor>& all) {
        return std::vector<Tensor>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                   all.begin() + static_cast<std::ptrdiff_t>(first + count));
      };
      std::vector<Tensor> after;
      for (const Tensor& p : part(params)) after.push_back(p.detach());
      add("grad_" + text + "_norm", of, norm_of(part(raw), order));
      add("weight_" + text + "_norm", of, norm_of(part(before), order));
      add("update_ratio", of, ratio_of(after, part(before), order));
    };
    for (size_t i = 0; i < 4; ++i) add_all("/" + names[i], i, 1);
    add_all("/first", 0, 2);
    add_all("/second", 2, 2);
    add_all("_total", 0, 4);
  }
  return logged;
}

struct Run {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::shared_ptr<GradientMonitor> monitor;
  std::set<std::string> names;
};

template <class M = AdamWModule>
Run train(GradientMonitor::Options options,
          const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {}) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.enable_checkpointing = false;
  Run run;
  run.monitor = std::make_shared<GradientMonitor>(options);
  TrainerComponents components;
  components.loggers = {run.logger};
  components.add(run.monitor);
  if (change) change(trainer_options, components);
  at::manual_seed(7);
  const auto module = std::make_shared<M>();
  const auto loader = std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(kSamples)),
                                                   DataLoaderOptions{.batch_size = kBatch});
  Trainer(trainer_options, components).fit(module, DataSource(loader));
  for (const auto& row : run.logger->rows)
    for (const auto& [name, value] : row.metrics) run.names.insert(name);
  return run;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("GradientMonitor: norms and update ratios equal those of a hand-written loop, bit for bit") {
  const int64_t accumulate = GENERATE(1, 3);
  const NormDetail norms = GENERATE(NormDetail::parameter, NormDetail::layer, NormDetail::total);
  const auto [order, text] =
      GENERATE(std::pair<double, const char*>(2.0, "2.0"), std::pair<double, const char*>(1.0, "1.0"),
               std::pair<double, const char*>(kInf, "inf"));
  CAPTURE(accumulate, static_cast<int>(norms), text);
  const Run run = train({.every = *Interval::parse("1st"), .norms = norms, .norm_type = order},
                        [&](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = accumulate; });
  size_t compared = 0;
  for (const auto& [name, values] : by_hand(accumulate, order, text, 1)) {
    const bool of_parameter = name.find('.', name.find('/')) != name.npos && name.find('/') != name.npos;
    const bool of_layer = name.find('/') != name.npos && !of_parameter;
    if ((of_parameter && norms != NormDetail::parameter) || (of_layer && norms != NormDetail::layer)) {
      CHECK_FALSE(run.names.contains(name));
      continue;
    }
    CAPTURE(name);
    CHECK(run.logger->values(name) == values);
    ++compared;
  }
  CHECK(compared == (norms == NormDetail::parameter ? 15 : norms == NormDetail::layer ? 9 : 3));
}

TEST_CASE("GradientMonitor: the step of a window that ends with the data is logged too") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.enable_checkpointing = false;
  options.accumulate_grad_batches = 3;
  const auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  components.add(std::make_shared<GradientMonitor>(GradientMonitor::Options{.every = *Interval::parse("1st")}));
  Trainer(options, components).fit(std::make_shared<AdamWModule>(), DataSource(regression_stream(32)));
  for (const char* name : {"grad_2.0_norm_total", "update_ratio_total", "nonfinite_gradients"}) {
    CAPTURE(name);
    const Values values = logger->values(name);
    REQUIRE(values.size() == 3);
    CHECK(values.back().first == 3);
  }
}

TEST_CASE("GradientMonitor: every says which steps are logged, by the number that the step has when it is done") {
  const Run run = train({.every = *Interval::parse("3st")});
  const auto expected = by_hand(1, 2.0, "2.0", 3);
  CHECK(expected.at("grad_2.0_norm_total").size() == 2);  // steps 3 and 6
  CHECK(run.logger->values("grad_2.0_norm_total") == expected.at("grad_2.0_norm_total"));
  CHECK(run.logger->values("update_ratio/first") == expected.at("update_ratio/first"));
}

TEST_CASE("GradientMonitor: a fit in which no step is logged says so, with the filter if it has one") {
  const auto reported = [](const char* every, const char* once, const char* why) {
    const LogLines lines;
    train({.every = *Interval::parse(every)}, [&](TrainerOptions&, TrainerComponents& components) {
      CallbackFilter filter;
      if (once) filter.once = Interval::parse(once);
      components.callbacks.front()->set_common_options(filter);
    });
    CHECK(lines.count(why) == lines.count("[gradient_monitor.nothing_logged]"));
    return lines.count("[gradient_monitor.nothing_logged]");
  };
  CHECK(reported("50st", nullptr, "its own `every: 50st` was never due. ") == 1);
  CHECK(reported("50st", "5st", "its own `every: 50st` was due in no step in which it was called (once: 5st). ") == 1);
  CHECK(reported("3st", nullptr, "its own `every: 3st`") == 0);
  CHECK(reported("1st", "5st", "its own `every: 1st`") == 0);
}

TEST_CASE("GradientMonitor: each kind of value can be left out, and the separator can be chosen") {
  const Run run = train({.every = *Interval::parse("1st"),
                         .weight_norms = false,
                         .update_ratios = false,
                         .count_nonfinite = false,
                         .group_separator = "."});
  CHECK(run.names.contains("grad_2.0_norm.first"));
  for (const std::string& name : run.names) {
    CAPTURE(name);
    CHECK(name.find("weight_2.0_norm") == name.npos);
    CHECK(name.find("update_ratio") == name.npos);
    CHECK(name != "nonfinite_gradients");
  }
  const Run all = train({.every = *Interval::parse("1st")});
  CHECK(all.logger->values("nonfinite_gradients") ==
        Values{{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}, {8, 0}});
}

TEST_CASE("GradientMonitor: under 16-mixed it sees the gradients of the loss itself, before clipping") {
  const auto with = [](std::shared_ptr<Precision> precision) {
    return train({.every = *Interval::parse("1st")}, [&](TrainerOptions& options, TrainerComponents& components) {
      options.accumulate_grad_batches = 2;
      options.gradient_clip_val = 0.01;
      options.log_grad_norm = true;
      components.precision = precision;
    });
  };
  const Run full = with(nullptr);
  const Run mixed = with(std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = 1024}));
  const Values expected = full.logger->values("grad_2.0_norm_total"), got = mixed.logger->values("grad_2.0_norm_total");
  REQUIRE(expected.size() == 4);
  REQUIRE(got.size() == 4);
  CHECK(got == mixed.logger->values("grad_norm"));
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].second > 0.01);
    CHECK(std::abs(got[i].second / expected[i].second - 1) < 0.02);
  }
}

TEST_CASE("GradientMonitor: with master weights it sees the float32 copies, which small steps move") {
  struct Slow : BoringModule {
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 1e-5}); }
  };
  const Run run = train<Slow>({.every = *Interval::parse("1st"), .norms = NormDetail::total},
                              [](TrainerOptions&, TrainerComponents& components) {
                                components.precision = std::make_shared<BFloat16True>(BFloat16True::Options{});
                              });
  const Values ratios = run.logger->values("update_ratio_total");
  REQUIRE(ratios.size() == 8);
  // A bfloat16 weight moves by at least 1/256 of itself, or not at all.
  for (const auto& [step, ratio] : ratios) {
    CHECK(ratio > 0);
    CHECK(ratio < 1e-3);
  }
}

TEST_CASE("GradientMonitor: histograms have the gradients and the weights of the step, for the loggers") {
  const Run run = train({.every = *Interval::parse("4st"), .gradient_histograms = true, .weight_histograms = true});
  REQUIRE(run.logger->media.size() == 16);  // two steps, four parameters, two kinds
  const auto norms = by_hand(1, 2.0, "2.0", 4);
  std::map<std::string, Values> got;
  for (const auto& [step, record] : run.logger->media) {
    const auto& histogram = std::get<HistogramRecord>(record);
    got[histogram.name].emplace_back(step, at::linalg_vector_norm(histogram.values, 2).item<double>());
  }
  for (const std::string name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
    CAPTURE(name);
    CHECK(got["gradients/" + name] == norms.at("grad_2.0_norm/" + name));
    CHECK(got["weights/" + name] == norms.at("weight_2.0_norm/" + name));
  }
  CHECK(train({.every = *Interval::parse("4st"), .gradient_histograms = true}).logger->media.size() == 8);
  CHECK(train({.every = *Interval::parse("4st"), .weight_histograms = true}).logger->media.size() == 8);
  CHECK(train({.every = *Interval::parse("4st")}).logger->media.empty());
}

TEST_CASE("GradientMonitor: histograms reach a logger that may block on its own thread") {
  struct Blocking : MemoryLogger {
    std::set<std::thread::id> of_media, of_rows;
    bool may_block() const override { return true; }
    void log_metrics(const Metrics& metrics, int64_t step) override {
      of_rows.insert(std::this_thread::get_id());
      MemoryLogger::log_metrics(metrics, step);
    }
    void log_media(const MediaRecord& record, int64_t step) override {
      of_media.insert(std::this_thread::get_id());
      MemoryLogger::log_media(record, step);
    }
  };
  const auto logger = std::make_shared<Blocking>();
  train({.every = *Interval::parse("4st"), .gradient_histograms = true},
        [&](TrainerOptions&, TrainerComponents& components) { components.loggers = {logger}; });
  CHECK(logger->media.size() == 8);
  CHECK(logger->of_media == logger->of_rows);
  CHECK_FALSE(logger->of_media.contains(std::this_thread::get_id()));
  CHECK(logger->media.front().step == 4);
}

namespace {

/// A gradient is infinite in batches 2 and 5.
struct Overflowing : AdamWModule {
  int64_t batch = 0;
  void on_after_backward() override {
    if (batch == 2 || batch == 5) second->bias.mutable_grad().fill_(kInf);
    ++batch;
  }
};

}  // namespace

namespace {

/// The squares of a gradient exceed float32 in all batches, and one of its entries is NaN in batch 5.
struct Huge : AdamWModule {
  int64_t batch = 0;
  void on_after_backward() override {
    second->bias.mutable_grad().fill_(3e38);
    if (batch++ == 5) second->bias.mutable_grad()[0] = std::numeric_limits<double>::quiet_NaN();
  }
};

}  // namespace

TEST_CASE("GradientMonitor: a gradient is finite even if its squares are not") {
  const Run run = train<Huge>({.every = *Interval::parse("1st")}, [](TrainerOptions& options, TrainerComponents&) {
    options.on_nonfinite = OnNonFinite::off;
  });
  const Values counted = run.logger->values("nonfinite_gradients");
  REQUIRE(counted.size() == 8);
  CHECK(counted[4] == std::pair<int64_t, double>{5, 0});
  CHECK(counted[5] == std::pair<int64_t, double>{6, 1});
}

TEST_CASE("GradientMonitor: gradients that are not finite are named once, and counted in every step") {
  const LogLines lines;
  const Run run =
      train<Overflowing>({.every = *Interval::parse("2st")},
                         [](TrainerOptions& options, TrainerComponents&) { options.on_nonfinite = OnNonFinite::skip; });
  CHECK(run.logger->values("nonfinite_gradients") == Values{{2, 0}, {4, 1}, {6, 2}, {8, 2}});
  CHECK(run.monitor->nonfinite_counts() == std::map<std::string, int64_t>{{"second.bias", 2}});
  CHECK(lines.count("gradients are not finite: 'second.bias' in 1 step (up to step 4)") == 1);
  CHECK(lines.count("gradients are not finite") == 1);
  CHECK(lines.count("gradients were not finite: 'second.bias' in 2 steps") == 1);
}

TEST_CASE(
    "GradientMonitor: a fit that fails reports gradients that were not finite, between the steps that are logged") {
  // The batch that fails is undone if a callback saves, and it may be the one with the gradient.
  const bool saves = GENERATE(false, true), in_same_batch = GENERATE(false, true);
  CAPTURE(saves, in_same_batch);
  const LogLines lines;
  CHECK_THROWS_AS(train<Overflowing>({},
                                     [&](TrainerOptions& options, TrainerComponents& components) {
                                       if (in_same_batch) options.check_every = 1;
                                       if (!saves) return;
                                       options.enable_checkpointing = true;
                                       ModelCheckpoint::Options saving;
                                       saving.save_on_exception = true;
                                       components.add(std::make_shared<ModelCheckpoint>(saving));
                                     }),
                  NonFiniteError);
  CHECK(lines.count("gradients were not finite before the run failed: 'second.bias' in 1 step") == 1);
}

namespace {

struct TwoOptimizers : BoringModule {
  bool automatic_optimization() const override { return false; }
  OptimizerPlan configure_optimizers() override {
    const auto only = [&](torch::nn::Linear& part, const std::string& name) {
      auto optimizer = std::make_shared<SGD>(SGD::Options{.lr = 0.05});
      ParamGroup group;
      for (const auto& item : part->named_parameters()) {
        group.params.push_back(item.value());
        group.names.push_back(name + "." + item.key());
      }
      optimizer->attach({group});
      return PlannedOptimizer{optimizer, {}};
    };
    return OptimizerPlan::several({only(first, "first"), only(second, "second")});
  }
  std::vector<double> expected;
  StepOutput training_step(const Batch& b, int64_t) override {
    const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
    manual_backward(loss);
    expected.push_back(norm_of({second->weight.grad(), second->bias.grad()}, 2));
    seen = expected;
    for (size_t i : {0, 1}) {
      optimizers(i).step();
      optimizers(i).zero_grad();
    }
    return loss;
  }
  static inline std::vector<double> seen;
};

}  // namespace

TEST_CASE("GradientMonitor: with several optimizers, each has its total, and all log in the same steps") {
  const Run run = train<TwoOptimizers>({.every = *Interval::parse("2st")});
  CHECK(run.names.contains("grad_2.0_norm_total/0"));
  CHECK_FALSE(run.names.contains("grad_2.0_norm_total"));
  const Values second = run.logger->values("grad_2.0_norm_total/1");
  REQUIRE(second.size() == 4);
  for (size_t i = 0; i < 4; ++i)
    CHECK(second[i] == std::pair<int64_t, double>(2 * static_cast<int64_t>(i) + 2, TwoOptimizers::seen[2 * i + 1]));
  CHECK(run.logger->values("update_ratio/second").size() == 4);
}

TEST_CASE("GradientMonitor: nonfinite_gradients is the sum over all optimizers, whichever has made the step") {
  // A gradient is infinite in the first batch, whose step is that of the first optimizer.
  struct Alternating : TwoOptimizers {
    StepOutput training_step(const Batch& b, int64_t batch_idx) override {
      const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
      manual_backward(loss);
      if (batch_idx == 0) first->bias.mutable_grad().fill_(kInf);
      optimizers(static_cast<size_t>(batch_idx % 2)).step();
      for (size_t i : {0, 1}) optimizers(i).zero_grad();
      return loss;
    }
  };
  const Run run =
      train<Alternating>({.every = *Interval::parse("1st")},
                         [](TrainerOptions& options, TrainerComponents&) { options.on_nonfinite = OnNonFinite::skip; });
  CHECK(run.logger->values("nonfinite_gradients") ==
        Values{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}});
}

TEST_CASE("GradientMonitor: a run that is stopped and resumed logs what a quiet one logs") {
  const std::string every = GENERATE("3st", "7sa");
  const int64_t ends_at = GENERATE(4, 5, 6);
  const bool by_signal = GENERATE(true, false);
  CAPTURE(every, ends_at, by_signal);
  struct Outcome {
    std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
    std::map<std::string, int64_t> counts;
  };
  struct Overflows : SelfPlanned {
    using SelfPlanned::SelfPlanned;
    void on_after_backward() override {
      if (run().progress().global_step % 4 == 1) first->bias.mutable_grad().fill_(kInf);
    }
  };
  const auto fit = [&](const TemporaryFolder& folder, int64_t at, const CheckpointChoice& from) {
    Outcome outcome;
    const auto monitor = std::make_shared<GradientMonitor>(GradientMonitor::Options{.every = *Interval::parse(every)});
    at::manual_seed(3);
    interrupted::Settings settings{.from = from, .ends_at = at, .by_signal = by_signal};
    settings.module = std::make_shared<Overflows>(0.3);
    settings.saving.every_n_train_steps = 1;
    settings.change = [&](TrainerOptions& options, TrainerComponents& components) {
      options.max_epochs = 2;
      options.on_nonfinite = OnNonFinite::skip;
      components.loggers = {outcome.logger};
      components.add(monitor);
    };
    interrupted::fit(folder, std::move(settings));
    outcome.counts = monitor->nonfinite_counts();
    return outcome;
  };
  const TemporaryFolder quiet_folder, folder;
  const Outcome whole = fit(quiet_folder, -1, {});
  fit(folder, ends_at, {});
  const Outcome rest = fit(folder, -1, "auto");
  for (const char* name : {"grad_2.0_norm/first", "update_ratio_total", "nonfinite_gradients"}) {
    CAPTURE(name);
    const Values got = rest.logger->values(name);
    REQUIRE_FALSE(got.empty());
    Values expected = whole.logger->values(name);
    std::erase_if(expected, [&](const auto& value) { return value.first < got.front().first; });
    // Comparing texts, since a norm may be infinite or NaN.
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(cat(got[i].first, " ", got[i].second) == cat(expected[i].first, " ", expected[i].second));
    CHECK(got.front().first <= ends_at + 4);
  }
  CHECK(rest.counts == std::map<std::string, int64_t>{{"first.bias", 5}});
  CHECK(rest.counts == whole.counts);
}

TEST_CASE("GradientMonitor: a resumed run whose filter passes no further step saves the state of a quiet one") {
  const auto fit = [&](const TemporaryFolder& folder, int64_t at, const CheckpointChoice& from) {
    const auto monitor = std::make_shared<GradientMonitor>(GradientMonitor::Options{});
    CallbackFilter filter;
    filter.until = Interval::parse("1ep");
    monitor->set_common_options(filter);
    interrupted::Settings settings{.from = from, .ends_at = at};
    settings.change = [&](TrainerOptions& options, TrainerComponents& components) {
      options.max_epochs = 3;
      components.add(monitor);
    };
    interrupted::fit(folder, std::move(settings));
    return monitor->state();
  };
  const TemporaryFolder quiet_folder, folder;
  const StateTree whole = fit(quiet_folder, -1, {});
  fit(folder, 15, {});
  const StateTree rest = fit(folder, -1, "auto");
  REQUIRE(whole.at("nonfinite").as_list().size() == 1);
  REQUIRE(rest.at("nonfinite").as_list().size() == 1);
  const StateTree &expected = whole.at("nonfinite").as_list().front(), &got = rest.at("nonfinite").as_list().front();
  CHECK(got.at("steps").tensor().equal(expected.at("steps").tensor()));
  CHECK(got.at("names").as_list().size() == expected.at("names").as_list().size());
  CHECK(rest.at("reached").as_double() == whole.at("reached").as_double());
}

TEST_CASE("GradientMonitor: a norm of order 0 or less, and an interval of 0, are refused") {
  CHECK(message_of<ConfigError>([] { GradientMonitor({.norm_type = 0}); }).find("norm_type") != std::string::npos);
  CHECK_THROWS_AS(GradientMonitor({.every = Interval{0, Interval::Unit::steps}}), ConfigError);
}

}  // namespace gradient_monitor_test
