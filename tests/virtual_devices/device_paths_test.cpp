// The ways of the Trainer that a device takes and the CPU does not: batches sent ahead, metrics and norms that stay on
// the device, skips that it decides, its generator. On a virtual device, so that they run everywhere.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <c10/util/Exception.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>
#include <optional>

#include "fulgur/callbacks/sequence_length_warmup.h"
#include "fulgur/core/device/memory_stats.h"
#include "parted.h"
#include "support/shown_lines.h"

namespace device_paths_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

TrainerOptions on_one(const TemporaryFolder& folder) { return on_virtual(folder, "single_device", 1); }

int64_t copies_to_the_host() {
  int64_t count = 0;
  for (const DeviceCopies& copies : device_copies())
    if (copies.from.is_privateuseone() && copies.to.is_cpu()) count += copies.copies;
  return count;
}

}  // namespace

TEST_CASE("a fit on a device ends with the CPU's weights, bit for bit") {
  const std::string precision = GENERATE("32-true", "64-true", "bf16-true", "bf16-mixed");
  CAPTURE(precision);
  const TemporaryFolder folder;
  TrainerOptions cpu = quiet(folder), device = on_one(folder);
  for (TrainerOptions* options : {&cpu, &device}) {
    options->max_epochs = 3;
    options->precision = Spec<Precision>(precision);
    options->gradient_clip_val = 0.5;
    options->accumulate_grad_batches = 2;
  }
  const auto a = train(cpu, {.norm = true}), b = train(device, {.norm = true});
  CHECK(b.module->first->weight.device() == virtual_device(0));
  CHECK(same_weights(a.weights, b.weights));
  CHECK(metric_of(a.report.metrics, "val_loss") == metric_of(b.report.metrics, "val_loss"));
}

TEST_CASE("no value is copied to the host in a steady step") {
  const std::string precision = GENERATE("32-true", "16-mixed", "bf16-mixed");
  const std::string policy = GENERATE("raise", "skip", "off");
  CAPTURE(precision, policy);
  struct Counts : Callback {
    int64_t at_start = 0, at_end = 0;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step == 5) at_start = copies_to_the_host();
      if (run.progress().global_step == 35) at_end = copies_to_the_host();
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = on_one(folder);
  options.precision = Spec<Precision>(precision);
  options.on_nonfinite = *enum_from<OnNonFinite>(policy);
  options.gradient_clip_val = 0.5;
  options.log_every_n_steps = 50;
  auto counts = std::make_shared<Counts>();
  TrainerComponents components;
  components.add(counts);
  const auto trained = train(options, {.norm = true}, regression_data(4 * 40), {}, components);
  REQUIRE(trained.report.global_step == 40);
  CHECK(counts->at_end == counts->at_start);
  // The counter sees it if a step does read one.
  struct Reads : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput output = Parted::training_step(batch, batch_idx);
      read += output.loss.item<double>();
      return output;
    }
    double read = 0;
  };
  train<Reads>(options, {.norm = true}, regression_data(4 * 40), {}, components);
  CHECK(counts->at_end == counts->at_start + 30);
}

TEST_CASE("an overflow on a device skips the step there, and is counted") {
  struct Overflows : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput output = Parted::training_step(batch, batch_idx);
      if (batch_idx == 2) output.loss = output.loss * std::numeric_limits<float>::infinity();
      return output;
    }
  };
  const TemporaryFolder folder;
  TrainerOptions cpu = quiet(folder), device = on_one(folder);
  for (TrainerOptions* options : {&cpu, &device}) options->on_nonfinite = OnNonFinite::skip;
  const auto a = train<Overflows>(cpu), b = train<Overflows>(device);
  CHECK(same_weights(a.weights, b.weights));
  CHECK(metric_of(b.report.metrics, "skipped_steps") == 1);
  CHECK(metric_of(a.report.metrics, "skipped_steps") == 1);
  TrainerOptions raises = on_one(folder);
  CHECK_THROWS_AS(train<Overflows>(raises), NonFiniteError);
}

TEST_CASE("a batch that was prefetched to the device is shortened there, with the CPU's weights") {
  struct Shortened : Parted {
    using Parted::Parted;
    StepOutput training_step(const Batch& batch, int64_t) override {
      const Tensor y = batch["y"];
      CHECK((y.device() == device()));
      CHECK(y.size(1) == (global_step() < 5 ? 1 : 2));
      return at::mse_loss(out(batch["x"]).narrow(1, 0, y.size(1)), y);
    }
  };
  const TemporaryFolder folder;
  const auto run = [](const TrainerOptions& options) {
    TrainerComponents components;
    components.add(std::make_shared<SequenceLengthWarmup>(
        SequenceLengthWarmup::Options{.start = 1, .duration = *Interval::parse("5st"), .step = 1, .keys = {"y"}}));
    return train<Shortened>(options, {}, regression_data(), {}, components);
  };
  CHECK(same_weights(run(quiet(folder)).weights, run(on_one(folder)).weights));
}

TEST_CASE("a resumed run on a device continues bit for bit, with its generator") {
  const bool async = GENERATE(true, false);
  const std::string precision = GENERATE("32-true", "16-mixed");
  CAPTURE(async, precision);
  const TemporaryFolder folder, other;
  TrainerOptions whole = on_one(folder), first = on_one(other);
  for (TrainerOptions* options : {&whole, &first}) {
    options->max_epochs = 2;
    options->async_checkpoint = async;
    options->precision = Spec<Precision>(precision);
  }
  const Parted::Options model{.dropout = 0.5, .norm = true};
  const auto a = train(whole, model);
  first.max_steps = 7;
  const auto b = train(first, model);
  first.max_steps = -1;
  const auto c = train(first, model, regression_data(), b.report.last_checkpoint->string());
  CHECK(same_weights(a.weights, c.weights));
}

TEST_CASE("a checkpoint made on a device resumes on the CPU") {
  const TemporaryFolder folder;
  TrainerOptions device = on_one(folder), cpu = quiet(folder);
  device.max_epochs = cpu.max_epochs = 2;
  const auto whole = train(cpu);
  device.max_steps = 7;
  const auto begun = train(device);
  const auto ended = train(cpu, {}, regression_data(), begun.report.last_checkpoint->string());
  CHECK(same_weights(whole.weights, ended.weights));
}

TEST_CASE("the following batch is read when the step of the last one was launched, before its hooks run") {
  static std::vector<std::string> order;
  order.clear();
  struct Reading : BatchDataset {
    int64_t size() const override { return 6; }
    Batch get(c10::ArrayRef<int64_t> indices, const SampleContext&) const override {
      // One sample is requested once, for what batches look like.
      if (indices.size() > 1) order.push_back("read " + std::to_string(indices[0] / 2));
      const auto samples = static_cast<int64_t>(indices.size());
      return Batch{{"x", at::ones({samples, 4})}, {"y", at::ones({samples, 2})}};
    }
  };
  struct Noting : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t index) override {
      order.push_back("step " + std::to_string(index));
      return SelfPlanned::training_step(batch, index);
    }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t index) override {
      order.push_back("end " + std::to_string(index));
    }
    Outputs validation_step(const Batch&, int64_t index, int64_t) override {
      order.push_back("validation " + std::to_string(index));
      return {};
    }
    void on_validation_batch_end(const Outputs&, const Batch&, int64_t index, int64_t) override {
      order.push_back("end " + std::to_string(index));
    }
  };
  const auto loader = [] {
    return std::shared_ptr<Loader>(
        std::make_shared<DataLoader>(std::make_shared<Reading>(), DataLoaderOptions{.batch_size = 2}));
  };
  const TemporaryFolder folder;
  const std::shared_ptr<Loader> training = loader(), validation = loader();
  Trainer(on_one(folder)).fit(std::make_shared<Noting>(), DataSource(training, {validation}));
  const auto of = [](const std::string& step) {
    std::vector<std::string> all{"read 0"};
    for (int i = 0; i < 3; ++i) {
      all.push_back(step + " " + std::to_string(i));
      if (i < 2) all.push_back("read " + std::to_string(i + 1));
      all.push_back("end " + std::to_string(i));
    }
    return all;
  };
  std::vector<std::string> expected = of("step");
  const std::vector<std::string> evaluation = of("validation");
  expected.insert(expected.end(), evaluation.begin(), evaluation.end());
  CHECK(order == expected);
}

TEST_CASE("on_nonfinite: skip puts back a buffer that the module replaces, if the device decides on the skip") {
  // A running mean that forward does not change in place; one that grows is read by the host.
  struct Replacing : SelfPlanned {
    bool grows;
    Tensor* mean;
    int64_t batches = 0;
    Tensor before, after;
    explicit Replacing(bool growing) : grows(growing), mean(&register_buffer("mean", at::zeros({4}))) {}
    StepOutput training_step(const Batch& b, int64_t) override {
      const at::NoGradGuard no_grad;
      *mean = grows ? at::cat({*mean, b[0].mean().view({1})}) : *mean * 0.9 + b[0].mean(0) * 0.1;
      const at::AutoGradMode with_grad(true);
      return at::mse_loss(forward(b[0]), b[1]);
    }
    Batch on_before_batch_transfer(Batch b, int64_t) override {
      if (++batches == 5) b.set(0, b[0] * std::numeric_limits<double>::quiet_NaN());
      return b;
    }
    int on_train_batch_start(const Batch&, int64_t) override {
      if (batches == 5) before = mean->cpu().clone();
      return 0;
    }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      if (batches == 5) after = mean->cpu().clone();
    }
  };
  const bool grows = GENERATE(false, true);
  CAPTURE(grows);
  const TemporaryFolder folder;
  TrainerOptions options = on_one(folder);
  options.on_nonfinite = OnNonFinite::skip;
  options.limit_val_batches = BatchLimit(int64_t{0});
  const auto module = std::make_shared<Replacing>(grows);
  Trainer(options).fit(module, regression_data(40, 0));
  REQUIRE(module->before.defined());
  CHECK(module->before.equal(module->after));
  CHECK(module->mean->cpu().isfinite().all().item<bool>());
}

TEST_CASE(
    "auto_micro_batch: on a device with too little memory for a batch, training continues with the same weights") {
  // Wide batches, so that activations take most of the memory.
  const auto data = [] { return regression_data(512, 0, 256); };
  const TemporaryFolder folder;
  TrainerOptions options = on_virtual(folder, "single_device", 1);
  options.max_epochs = 2;
  options.auto_micro_batch = true;
  const auto plain = train(options, {}, data());
  const at::Device device = virtual_device(0);
  const int64_t held = device_memory(device)->allocated;
  int64_t peak = 0;
  for (const PeakMemory& memory : plain.report.peak_memory)
    if (memory.device == device.str()) peak = memory.bytes;
  REQUIRE(peak > held);
  set_virtual_device_memory(held + (peak - held) * 3 / 4);
  std::optional<Trained<>> scarce;
  try {
    scarce = train(options, {}, data());
  } catch (...) {
    set_virtual_device_memory(0);
    throw;
  }
  options.auto_micro_batch = false;
  const std::string told = shown_lines([&] { CHECK_THROWS_AS(train(options, {}, data()), c10::OutOfMemoryError); });
  set_virtual_device_memory(0);
  CHECK(told.find("out of memory: tensors hold ") != std::string::npos);
  CHECK(told.find("hold 0 MiB") == std::string::npos);  // less than that is shown in KiB
  CHECK(scarce->report.global_step == plain.report.global_step);
  CHECK(largest_difference(plain.weights, scarce->weights) < 1e-6);
}

}  // namespace device_paths_test
