// Data parallel in one process, on virtual devices, against one device.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/metrics/ranking.h"
#include "fulgur/metrics/stat_scores.h"
#include "fulgur/trainer/yaml.h"
#include "parted.h"
#include "support/expect_error.h"

namespace dp_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

namespace {

TrainerOptions single(const TemporaryFolder& folder) { return quiet(folder); }

int64_t bytes_of(const LightningModule& module) {
  int64_t bytes = 0;
  for (const auto& [name, value] : unique_parameters(module)) bytes += static_cast<int64_t>(value.nbytes());
  return bytes;
}

}  // namespace

TEST_CASE("dp on 2, 4 and 8 devices equals one device after 100 steps") {
  const int devices = GENERATE(2, 4, 8);
  const TemporaryFolder folder;
  // Batches of 13, which no number of devices divides, and a last one of 3.
  const auto data = [] { return regression_data(13 * 24 + 3, 20, 13); };
  TrainerOptions one = single(folder), many = on_virtual(folder, "dp", devices);
  for (TrainerOptions* options : {&one, &many}) {
    options->max_epochs = 4;
    options->gradient_clip_val = 0.5;
  }
  const auto a = train(one, {}, data()), b = train(many, {}, data());
  CHECK(a.report.global_step == 100);
  CHECK(b.report.global_step == 100);
  CHECK(b.module->first->weight.device() == virtual_device(0));
  CHECK(largest_difference(a.weights, b.weights) < 1e-6);
  for (const char* name : {"train_loss_epoch", "samples", "val_loss"})
    CHECK_THAT(metric_of(b.report.metrics, name), WithinAbs(metric_of(a.report.metrics, name), 1e-5));
  CHECK(metric_of(b.report.metrics, "samples") == 13 * 24 + 3);
}

TEST_CASE("dp names the dtype of a loss of integers, which the mean over the devices would hide") {
  struct Counts : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t) override { return out(batch[0]).argmax(1).sum(); }
  };
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(train<Counts>(on_virtual(folder, "dp", 2)),
                    ContainsSubstring("the loss must be a floating-point tensor; got Long"));
}

TEST_CASE("dp merges metric objects of the copies: their values are those of one device") {
  // Of the data alone, so that the weights' last bits have no influence.
  struct Measured : Parted {
    using Parted::Parted;
    metrics::Accuracy train_acc{{.num_classes = 2}}, val_acc{{.num_classes = 2}};
    metrics::Auroc val_auroc{{.num_classes = 2}};
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      train_acc.update(batch[0].slice(1, 0, 2), batch[1].argmax(1));
      log("train_acc", train_acc);
      return Parted::training_step(batch, batch_idx);
    }
    Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
      for (PredictionMetric* metric :
           {static_cast<PredictionMetric*>(&val_acc), static_cast<PredictionMetric*>(&val_auroc)})
        metric->update(batch[0].slice(1, 0, 2), batch[1].argmax(1));
      log("val_acc", val_acc);
      log("val_auroc", val_auroc);
      return {};
    }
  };
  const TemporaryFolder folder;
  TrainerOptions one = single(folder), many = on_virtual(folder, "dp", 4);
  one.max_epochs = many.max_epochs = 2;
  const auto a = train<Measured>(one), b = train<Measured>(many);
  for (const char* name : {"train_acc", "val_acc", "val_auroc"})
    CHECK(metric_of(b.report.metrics, name) == metric_of(a.report.metrics, name));
}

TEST_CASE("dp accumulates as one device does") {
  const TemporaryFolder folder;
  TrainerOptions one = single(folder), many = on_virtual(folder, "dp", 4);
  one.accumulate_grad_batches = many.accumulate_grad_batches = 3;
  one.max_epochs = many.max_epochs = 4;
  CHECK(largest_difference(train(one).weights, train(many).weights) < 1e-6);
}

TEST_CASE("dp in other precisions equals one device in them") {
  const std::string precision = GENERATE("64-true", "bf16-true", "bf16-mixed", "16-mixed");
  CAPTURE(precision);
  const TemporaryFolder folder;
  TrainerOptions one = on_virtual(folder, "single_device", 1), many = on_virtual(folder, "dp", 2);
  one.precision = many.precision = Spec<Precision>(precision);
  one.max_epochs = many.max_epochs = 3;
  const auto a = train(one), b = train(many);
  // Adam makes whole steps of gradients that half formats round to another sign.
  if (precision == "64-true")
    CHECK(largest_difference(a.weights, b.weights) < 1e-12);
  else
    CHECK(largest_difference(a.weights, b.weights) < 0.1);
  CHECK_THAT(metric_of(b.report.metrics, "val_loss"),
             WithinAbs(metric_of(a.report.metrics, "val_loss"), precision == "64-true" ? 1e-12 : 0.02));
}

TEST_CASE("a batch smaller than the devices takes fewer of them, one sample takes one") {
  const TemporaryFolder folder;
  for (const int64_t batch : {1, 3}) {
    TrainerOptions one = single(folder), many = on_virtual(folder, "dp", 8);
    one.limit_val_batches = many.limit_val_batches = BatchLimit(int64_t{0});
    const auto a = train(one, {}, regression_data(7, 0, batch));
    reset_device_copies();
    const auto b = train(many, {}, regression_data(7, 0, batch));
    CHECK(largest_difference(a.weights, b.weights) < 1e-6);
    int64_t beyond = 0;
    for (const DeviceCopies& copies : device_copies())
      if (copies.to.is_privateuseone() && copies.to.index() >= batch && copies.from.is_privateuseone())
        beyond += copies.bytes;
    // Weights go to all copies in a step that is split; batches to as many devices as there are samples.
    if (batch == 1)
      CHECK(bytes_between_virtual_devices() == 0);
    else
      CHECK(beyond == 5 * 2 * bytes_of(*b.module));
  }
}

TEST_CASE("dp copies what it must: weights and a chunk to each device, gradients and a loss back") {
  const int devices = GENERATE(2, 4);
  const TemporaryFolder folder;
  struct Silent : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t) override { return at::mse_loss(out(batch[0]), batch[1]); }
  };
  TrainerOptions options = on_virtual(folder, "dp", devices);
  options.limit_val_batches = BatchLimit(int64_t{0});
  reset_device_copies();
  const auto trained = train<Silent>(options, {}, regression_data(40, 0, 8));
  const int64_t steps = 5, others = devices - 1, weights = bytes_of(*trained.module);
  const int64_t rows = 8 / devices * others * (4 + 2) * 4;
  // The gradient of the loss goes back to where the loss came from.
  CHECK(bytes_between_virtual_devices() == steps * (others * (2 * weights + 4 + 4) + rows));
}

TEST_CASE("weights that did not change are not copied again") {
  const TemporaryFolder folder;
  struct Frozen : Parted {
    explicit Frozen(const Parted::Options& options) : Parted(options) {
      for (auto& p : first->parameters()) p.set_requires_grad(false);
    }
    StepOutput training_step(const Batch& batch, int64_t) override { return at::mse_loss(out(batch[0]), batch[1]); }
  };
  TrainerOptions options = on_virtual(folder, "dp", 2);
  options.limit_val_batches = BatchLimit(int64_t{0});
  options.accumulate_grad_batches = 5;
  reset_device_copies();
  const auto trained = train<Frozen>(options, {}, regression_data(40, 0, 8));
  const int64_t learns = (8 * 2 + 2) * 4, frozen = (4 * 8 + 8) * 4;
  CHECK(bytes_of(*trained.module) == learns + frozen);
  // One step of five batches: values once, gradients with each.
  CHECK(bytes_between_virtual_devices() == learns + frozen + 5 * (learns + 4 + 4 + 4 * 6 * 4));
}

TEST_CASE("under dp the buffers are those of the first device") {
  const TemporaryFolder folder;
  TrainerOptions options = on_virtual(folder, "dp", 2);
  options.max_steps = 1;
  options.limit_val_batches = BatchLimit(int64_t{0});
  const auto data = [] { return regression_data(8, 0, 8, /*shuffle=*/false); };
  const auto trained = train(options, {.norm = true}, data());
  // By hand: the statistics of the first half of the batch.
  seed_everything(7);
  Parted by_hand({.norm = true});
  by_hand.out(regression(8, 1)[0].narrow(0, 0, 4));
  CHECK((trained.weights.at("norm.running_mean").allclose(by_hand.norm->running_mean, 1e-5, 1e-6)));
  CHECK((trained.weights.at("norm.num_batches_tracked").item<int64_t>() == 1));
}

TEST_CASE("dp with on_nonfinite: skip skips a step if one device's loss is NaN, and no copy keeps a trace of it") {
  // The rows of one device are NaN in the fifth batch. Every copy looks at its statistics at the start of a step.
  static std::atomic<int> bad_statistics;
  static int64_t bad_device;
  struct Poisoned : Parted {
    int64_t batches = 0, window = 1;
    std::map<std::string, Tensor> before, after;
    explicit Poisoned(const Parted::Options& options) : Parted(options) {}
    Batch on_before_batch_transfer(Batch batch, int64_t) override {
      if (++batches != 5) return batch;
      Tensor x = batch[0].clone();
      x.narrow(0, bad_device * 4, 4).fill_(std::numeric_limits<double>::quiet_NaN());
      batch.set(0, x);
      return batch;
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      if (!norm->running_mean.cpu().isfinite().all().item<bool>()) ++bad_statistics;
      return at::mse_loss(out(batch[0]), batch[1]);
    }
    int on_train_batch_start(const Batch&, int64_t) override {
      if (batches == (5 - 1) / window * window + 1) before = weights_on_cpu(*this);
      return 0;
    }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      if (batches == ((5 - 1) / window + 1) * window) after = weights_on_cpu(*this);
    }
  };
  bad_device = GENERATE(0, 1);
  const int64_t window = GENERATE(1, 2);
  CAPTURE(bad_device, window);
  bad_statistics = 0;
  const TemporaryFolder folder;
  TrainerOptions options = on_virtual(folder, "dp", 2);
  options.limit_val_batches = BatchLimit(int64_t{0});
  options.on_nonfinite = OnNonFinite::skip;
  options.accumulate_grad_batches = window;
  options.log_every_n_steps = 1;
  const auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  components.seed = 7;
  const auto module = make_component<LightningModule, Poisoned>(Parted::Options{.norm = true});
  module->window = window;
  Trainer(options, components).fit(module, regression_data(8 * 8, 0, 8, /*shuffle=*/false));
  REQUIRE_FALSE(module->before.empty());
  CHECK(largest_difference(module->before, module->after) == 0);
  for (const auto& [name, value] : weights_on_cpu(*module)) {
    CAPTURE(name);
    CHECK(value.isfinite().all().item<bool>());
  }
  // The second batch of the window begins with what the first one left, also on the copies.
  CHECK(bad_statistics == (window == 2 && bad_device == 0 ? 2 : 0));
  REQUIRE_FALSE(logger->values("skipped_steps").empty());
  CHECK(logger->values("skipped_steps").back().second == 1);
}

TEST_CASE("each device of dp draws its own random numbers, and a resumed run continues bit for bit") {
  const TemporaryFolder folder, other;
  TrainerOptions whole = on_virtual(folder, "dp", 3), first = on_virtual(other, "dp", 3);
  whole.max_epochs = first.max_epochs = 2;
  const Parted::Options dropout{.dropout = 0.5};
  const auto a = train(whole, dropout);
  first.max_steps = 7;
  const auto b = train(first, dropout);
  REQUIRE(b.report.last_checkpoint);
  first.max_steps = -1;
  const auto c = train(first, dropout, regression_data(), b.report.last_checkpoint->string());
  CHECK(c.report.global_step == a.report.global_step);
  CHECK(same_weights(a.weights, c.weights));
  // The masks of two devices for the same rows differ.
  seed_everything(7);
  seed_devices(7, {virtual_device(0), virtual_device(1)});
  const auto mask = [](int64_t device) {
    return at::dropout(at::ones({64}, at::TensorOptions().device(virtual_device(device))), 0.5, true).cpu();
  };
  CHECK_FALSE((mask(0).equal(mask(1))));
}

TEST_CASE("a checkpoint of dp is one of any run: it continues on one device, and the other way round") {
  const TemporaryFolder folder;
  TrainerOptions many = on_virtual(folder, "dp", 2), one = single(folder);
  many.max_epochs = one.max_epochs = 2;
  const auto whole = train(one);
  for (const bool from_many : {true, false}) {
    TrainerOptions start = from_many ? many : one, rest = from_many ? one : many;
    start.max_steps = 9;
    const auto begun = train(start);
    const auto ended = train(rest, {}, regression_data(), begun.report.last_checkpoint->string());
    CHECK(ended.report.global_step == whole.report.global_step);
    CHECK(largest_difference(whole.weights, ended.weights) < 1e-6);
  }
}

TEST_CASE("dp evaluates and predicts in sample order, with exact means") {
  const TemporaryFolder folder;
  TrainerOptions one = single(folder), many = on_virtual(folder, "dp", 4);
  one.precision = many.precision = Spec<Precision>("64-true");
  const auto data = [] { return regression_data(8, 23, 5); };
  seed_everything(3);
  const auto module = make_component<LightningModule, Parted>(Parted::Options{});
  const auto a = Trainer(one).test(module, data()), b = Trainer(many).test(module, data());
  CHECK_THAT(metric_of(b.loaders[0], "test_loss"), WithinAbs(metric_of(a.loaders[0], "test_loss"), 1e-12));
  CHECK(b.samples == 23);
  const auto c = Trainer(one).predict(module, data()), d = Trainer(many).predict(module, data());
  CHECK((c.loaders[0]["y"].allclose(d.loaders[0]["y"], 1e-12, 1e-12)));
  CHECK(d.loaders[0]["y"].size(0) == 23);
}

TEST_CASE("callbacks see one step: outputs of all samples in their order, the mean of single values") {
  struct Looks : Callback {
    std::vector<Tensor> first;
    double mean = 0, loss = 0;
    bool graph = false;
    void on_train_batch_end(RunContext&, const StepOutput& output, const Batch& batch, int64_t) override {
      CHECK((output.extra["first"].cpu().equal(batch[0].cpu().select(1, 0))));
      mean = output.extra["mean"].item<double>() - batch[0].mean().item<double>();
      graph = graph || output.loss.requires_grad();
      loss = output.loss.item<double>();
    }
  };
  const TemporaryFolder folder;
  auto looks = std::make_shared<Looks>();
  TrainerComponents components;
  components.add(looks);
  const auto trained = train(on_virtual(folder, "dp", 3), {}, regression_data(10, 0, 10), {}, components);
  CHECK_THAT(looks->mean, WithinAbs(0, 1e-6));
  CHECK_FALSE(looks->graph);
  CHECK_THAT(metric_of(trained.report.metrics, "train_loss_step"), WithinAbs(looks->loss, 1e-6));
}

TEST_CASE("a copy's stop request is the run's, and its exception ends the run") {
  struct Wishes : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (run().device().index() == 1 && batch_idx == 2) run().request_stop("enough");
      return Parted::training_step(batch, batch_idx);
    }
  };
  struct Throws : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (run().device().index() == 1 && batch_idx == 2) throw std::runtime_error("broken on the second");
      return Parted::training_step(batch, batch_idx);
    }
  };
  const TemporaryFolder folder;
  const auto stopped = train<Wishes>(on_virtual(folder, "dp", 2));
  CHECK(stopped.report.stop_reason == "enough");
  CHECK(stopped.report.global_step == 3);
  CHECK_THROWS_WITH(train<Throws>(on_virtual(folder, "dp", 2)), ContainsSubstring("broken on the second"));
}

TEST_CASE("dp says what it does not support, and what to do") {
  const TemporaryFolder folder;
  const auto message = [&](TrainerOptions options, std::shared_ptr<LightningModule> module) {
    return message_of<ConfigError>([&] { Trainer(options).fit(module, regression_data()); });
  };
  const auto made = [] { return make_component<LightningModule, Parted>(Parted::Options{}); };
  CHECK_THAT(message(on_virtual(folder, "dp", 2), std::make_shared<SelfPlanned>()),
             ContainsSubstring("passed as an object") && ContainsSubstring("fit<MyModule>(options"));
  TrainerOptions cpu = quiet(folder);
  cpu.strategy = Spec<Strategy>("dp");
  CHECK_THAT(message(cpu, made()), ContainsSubstring("the CPU is one device") && ContainsSubstring("ddp"));
  cpu.devices = 2;
  CHECK_THAT(message(cpu, made()),
             ContainsSubstring("2 devices were requested") && ContainsSubstring("accelerator: virtual"));
  TrainerOptions synced = on_virtual(folder, "dp", 2);
  synced.sync_batchnorm = true;
  CHECK_THAT(message(synced, made()), ContainsSubstring("sync_batchnorm"));
  TrainerOptions nodes = on_virtual(folder, "dp", 2);
  nodes.num_nodes = 2;
  CHECK_THAT(message(nodes, made()), ContainsSubstring("num_nodes is 2"));
  struct Manual : Parted {
    using Parted::Parted;
    bool automatic_optimization() const override { return false; }
  };
  CHECK_THAT(message(on_virtual(folder, "dp", 2), make_component<LightningModule, Manual>(Parted::Options{})),
             ContainsSubstring("uses manual optimization"));
  struct Random : Parted {
    explicit Random(const Options& options) : Parted(options) {
      static int made = 0;
      register_module("extra", torch::nn::Linear(1, ++made));
    }
  };
  CHECK_THAT(message(on_virtual(folder, "dp", 2), make_component<LightningModule, Random>(Parted::Options{})),
             ContainsSubstring("extra.weight") && ContainsSubstring("options alone"));
}

TEST_CASE("fit takes a module's options, and dp creates as many as it needs") {
  const TemporaryFolder folder;
  const FitReport report = Trainer(on_virtual(folder, "dp", 2)).fit<Parted>(Parted::Options{}, regression_data());
  CHECK(report.global_step == 10);
}

TEST_CASE("the end of a fit reports the peak of each device") {
  const TemporaryFolder folder;
  const auto trained = train(on_virtual(folder, "dp", 3));
  std::vector<std::string> devices;
  for (const PeakMemory& peak : trained.report.peak_memory) {
    devices.push_back(peak.device);
    CHECK(peak.bytes > 0);
  }
  CHECK(devices == std::vector<std::string>{"cpu", "virtual:0", "virtual:1", "virtual:2"});
  CHECK_THAT(peak_memory_text(trained.report.peak_memory), ContainsSubstring("virtual:2"));
}

TEST_CASE("monitors report each device, and measure against all of them") {
  const TemporaryFolder folder;
  TrainerOptions options = on_virtual(folder, "dp", 2), one = on_virtual(folder, "single_device", 1);
  const auto logged = [](TrainerOptions how) {
    Problems problems;
    how.callbacks.emplace_back("DeviceStatsMonitor");
    Spec<Callback>& throughput = how.callbacks.emplace_back("ThroughputMonitor");
    throughput.read(
        parse_yaml(
            "{class_path: ThroughputMonitor, init_args: {window_size: 2, flops_per_sample: 1e6, peak_flops: 1e6}}",
            "test", problems),
        problems, "callbacks");
    problems.throw_if_any();
    TrainerComponents components;
    auto memory = std::make_shared<MemoryLogger>();
    components.loggers = {memory};
    return std::pair(train(std::move(how), {}, regression_data(), {}, components).report.metrics, memory);
  };
  const auto [several, logger] = logged(options);
  CHECK(metric_of(several, "DeviceStatsMonitor.on_train_batch_end/virtual:0/peak_allocated_bytes") > 0);
  CHECK(metric_of(several, "DeviceStatsMonitor.on_train_batch_end/virtual:1/peak_allocated_bytes") > 0);
  CHECK_THAT(metric_of(several, "device/mfu"), WithinAbs(metric_of(several, "device/flops_per_sec") / 2e6,
                                                         1e-9 * metric_of(several, "device/flops_per_sec")));
  const auto [alone, other] = logged(one);
  CHECK(metric_of(alone, "DeviceStatsMonitor.on_train_batch_end/peak_allocated_bytes") > 0);
  CHECK_THAT(metric_of(alone, "device/mfu"), WithinAbs(metric_of(alone, "device/flops_per_sec") / 1e6,
                                                       1e-9 * metric_of(alone, "device/flops_per_sec")));
}

namespace {

// Sums up an evaluation in members, and logs the result itself.
struct Summing : Parted {
  using Parted::Parted;
  double sum = 0, samples = 0;
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    const auto count = static_cast<double>(batch.size());
    sum += at::mse_loss(out(batch[0]), batch[1]).item<double>() * count;
    samples += count;
    log("val_loss", at::mse_loss(out(batch[0]), batch[1]));
    return {};
  }
  void on_validation_epoch_end() override {
    log("summed", sum / samples);
    sum = samples = 0;
  }
};

}  // namespace

TEST_CASE("dp evaluates a module that sums up in members on one device, where they are whole") {
  const TemporaryFolder folder;
  for (const int devices : {2, 3}) {
    CAPTURE(devices);
    const auto run = train<Summing>(on_virtual(folder, "dp", devices), {}, regression_data(40, 21, 4));
    CHECK_THAT(metric_of(run.report.metrics, "summed"), WithinAbs(metric_of(run.report.metrics, "val_loss"), 1e-6));
  }
}

TEST_CASE("dp says that members which training_step writes are a copy's own, if the module looks at them") {
  struct Gathering : Parted {
    using Parted::Parted;
    void on_train_epoch_end() override {}
  };
  const TemporaryFolder folder;
  const auto told = [&]<class M>() {
    std::string lines;
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &lines);
    train<M>(on_virtual(folder, "dp", 2));
    log::set_sink({}, nullptr);
    return lines;
  };
  CHECK_THAT(told.template operator()<Gathering>(), ContainsSubstring("stays on the copy"));
  CHECK_THAT(told.template operator()<Parted>(), !ContainsSubstring("stays on the copy"));
}

}  // namespace dp_test
