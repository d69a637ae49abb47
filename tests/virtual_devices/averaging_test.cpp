// WeightAveraging on devices that decide themselves which steps are skipped, and over several devices.
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "fulgur/callbacks/weight_averaging.h"
#include "parted.h"

namespace averaging_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

// Its loss overflows in the first two steps, and in the fifth.
struct Overflows : Parted {
  using Parted::Parted;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Parted::training_step(batch, batch_idx);
    if (batch_idx < 2 || batch_idx == 4) output.loss = output.loss * std::numeric_limits<float>::infinity();
    return output;
  }
};

struct Averaged {
  Trained<Overflows> run;
  std::shared_ptr<WeightAveraging> callback;
  std::map<std::string, Tensor> averages;  // on the CPU
};

Averaged averaged(TrainerOptions options, const WeightAveraging::Options& averaging, int64_t steps) {
  options.on_nonfinite = OnNonFinite::skip;
  options.max_steps = steps;
  options.limit_val_batches = 0;
  Averaged all{.run = {}, .callback = std::make_shared<WeightAveraging>(averaging), .averages = {}};
  TrainerComponents components;
  components.add(all.callback);
  all.run = train<Overflows>(std::move(options), {}, regression_data(), {}, components);
  const StateTree averages = all.callback->averaged_parameters();
  for (const auto& [name, value] : averages.as_map()) all.averages[name] = value.tensor().cpu();
  return all;
}

Interval length(const char* text) { return *Interval::parse(text); }

WeightAveraging::Options each_step(AveragingKind kind) {
  WeightAveraging::Options options{.kind = kind, .start = length("0st"), .every = length("1st"), .copy_at_end = false};
  options.update_bn = false;
  return options;
}

}  // namespace

TEST_CASE("WeightAveraging: the first copy follows the first step that the device makes") {
  const TemporaryFolder folder;
  for (const AveragingKind kind : {AveragingKind::ema, AveragingKind::swa})
    for (const bool on_device : {false, true}) {
      CAPTURE(enum_text(kind), on_device);
      const Averaged all =
          averaged(on_device ? on_virtual(folder, "single_device", 1) : quiet(folder), each_step(kind), 3);
      REQUIRE(all.run.report.global_step == 3);
      CHECK(all.callback->n_averaged() == 1);
      CHECK(all.callback->state().at("n_averaged").as_int() == 1);
      CHECK(same_weights(all.averages, all.run.weights));
    }
}

TEST_CASE("WeightAveraging: steps that the device skips do not count in the average") {
  const TemporaryFolder folder;
  for (const AveragingKind kind : {AveragingKind::ema, AveragingKind::swa}) {
    CAPTURE(enum_text(kind));
    const Averaged cpu = averaged(quiet(folder), each_step(kind), 10),
                   device = averaged(on_virtual(folder, "single_device", 1), each_step(kind), 10);
    CHECK(cpu.callback->n_averaged() == 7);
    CHECK(device.callback->n_averaged() == 7);
    CHECK(largest_difference(cpu.averages, device.averages) < 1e-6);
  }
}

TEST_CASE("WeightAveraging: a validation before the first update computes with the weights that are trained") {
  struct Watched : Callback {
    std::map<std::string, Tensor> trained, validated;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) override {
      if (batch_idx == 2) trained = weights_on_cpu(run.module());
    }
    void on_validation_batch_start(RunContext& run, const Batch&, int64_t, int64_t) override {
      if (run.sanity_checking() || !validated.empty()) return;
      validated = weights_on_cpu(run.module());
    }
  };
  const TemporaryFolder folder;
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    TrainerOptions options = on_device ? on_virtual(folder, "single_device", 1) : quiet(folder);
    options.on_nonfinite = OnNonFinite::skip;
    options.max_steps = 3;
    options.val_check_interval = 3;
    WeightAveraging::Options averaging = each_step(AveragingKind::ema);
    averaging.every = length("2st");  // both steps before the first update are skipped
    TrainerComponents components;
    const auto watched = std::make_shared<Watched>();
    components.add(std::make_shared<WeightAveraging>(averaging));
    components.add(watched);
    train<Overflows>(std::move(options), {}, regression_data(), {}, components);
    REQUIRE_FALSE(watched->validated.empty());
    CHECK(same_weights(watched->validated, watched->trained));
  }
}

TEST_CASE("WeightAveraging: if the device skips all steps, there is no average") {
  const TemporaryFolder folder;
  const Averaged all = averaged(on_virtual(folder, "single_device", 1), each_step(AveragingKind::ema), 2);
  CHECK(all.callback->n_averaged() == 0);
  CHECK(all.averages.empty());
}

TEST_CASE("WeightAveraging under dp: statistics of batch norms are recomputed of the devices' parts") {
  struct Counting : Parted {
    using Parted::Parted;
    static std::atomic<int64_t>& most() {
      static std::atomic<int64_t> rows{0};
      return rows;
    }
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      most() = std::max<int64_t>(most(), batch.size());
      return Parted::training_step(batch, batch_idx);
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = on_virtual(folder, "dp", 2);
  options.limit_val_batches = 0;
  TrainerComponents components;
  components.add(std::make_shared<WeightAveraging>(
      WeightAveraging::Options{.kind = AveragingKind::swa, .start = length("0st"), .every = length("1st")}));
  const auto run =
      train<Counting>(options, {.norm = true}, regression_data(40, 0, 8, /*shuffle=*/false), {}, components);
  // No more rows at once than in training.
  CHECK(Counting::most() == 4);
  Parted by_hand({.norm = true});
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : unique_parameters(by_hand)) Tensor(value).copy_(run.weights.at(name));
  const Tensor outputs = by_hand.forward(regression(40, 1)[0]).view({10, 4, 2});
  CHECK(run.weights.at("norm.running_mean").allclose(outputs.mean(1).mean(0), 1e-4, 1e-5));
  CHECK(run.weights.at("norm.running_var").allclose(outputs.var(1, /*unbiased=*/true).mean(0), 1e-4, 1e-5));
  CHECK(run.weights.at("norm.num_batches_tracked").item<int64_t>() == 10);
}

}  // namespace averaging_test
