// capture and the loader's batches: the loader writes into the memory that the captured step reads.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/conv.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/sequence_length_warmup.h"
#include "fulgur/data/combined_loader.h"
#include "support/device_counts.h"
#include "support/gpu.h"
#include "trainer/capture/captured_fit.h"

namespace captured_inputs_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Change = std::function<void(TrainerComponents&)>;
using MakeData = std::function<std::shared_ptr<DataModule>()>;

// The captured run, whose weights are the eager one's bit for bit.
template <class M>
Outcome<M> check_same(const TrainerOptions& options, const MakeData& data = {}, const Change& change = {}) {
  const auto run = [&](bool captures) {
    return fit<M>(
        options, captures,
        [&](TrainerComponents& components) {
          by_device(components);
          if (change) change(components);
        },
        {}, 42, data ? data() : nullptr);
  };
  const auto plain = run(false);
  auto captured = run(true);
  CAPTURE(captured.told);
  CHECK(captured.report.captured_batches > 0);
  CHECK_THAT(captured.told, !ContainsSubstring("not captured"));
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  return captured;
}

// What whole steps ask of the device, from the end of one to the end of another.
struct Counting : Callback {
  Counting(int64_t from, int64_t to) : first_step(from), last_step(to) {}
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    const int64_t step = run.progress().global_step;
    if (step == first_step) first = device_counts().value_or(DeviceCounts{});
    if (step == last_step) last = device_counts().value_or(DeviceCounts{});
  }
  int64_t first_step, last_step;
  DeviceCounts first, last;
};

void check_counts(const Counting& counting) {
  const int64_t steps = counting.last_step - counting.first_step;
  CHECK(counting.last.graph_launches - counting.first.graph_launches == steps);
  CHECK(counting.last.launches - counting.first.launches == 0);
  CHECK(counting.last.copies_on_device - counting.first.copies_on_device == 0);
  // Two entries.
  CHECK(counting.last.copies_to_device - counting.first.copies_to_device == 2 * steps);
}

// One rate.
struct Steady : BoringModule {
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.03125;
    return std::make_shared<AdamW>(options);
  }
};

struct Images : Steady {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
  StepOutput training_step(const Batch& batch, int64_t) override {
    in_format = in_format && batch[0].is_contiguous(at::MemoryFormat::ChannelsLast);
    const Tensor loss = at::mse_loss(conv(batch[0]).mean({2, 3}), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  bool in_format = true;
};

std::shared_ptr<DataModule> images() {
  at::manual_seed(4);
  TensorDataModule::Sets sets;
  sets.train = Batch{{"x", at::randn({42, 3, 6, 5})}, {"y", at::randn({42, 4})}};
  const auto data = std::make_shared<TensorDataModule>(
      std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = true});
  fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
  return data;
}

// Accepts sequences of any length.
struct MeanOfSequence : Steady {
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor x = batch[0].mean(1, /*keepdim=*/true).expand({batch.size(), 4});
    const Tensor loss = at::mse_loss(forward(x), batch[1]);
    log("train_loss", loss);
    return loss;
  }
};

// Keeps what it sees of every batch, and what its values were then.
struct Keeping : Callback {
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch& batch, int64_t) override {
    kept.push_back(batch[0]);
    values.push_back(batch[0].clone());
  }
  std::vector<Tensor> kept, values;
};

struct Doubling : Captured {
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    batch.set(0, batch[0] * 2);
    return batch;
  }
};

struct DoublingInPlace : Captured {
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    batch[0].mul_(2);
    return batch;
  }
};

struct Moving : Captured {
  Batch transfer_batch_to_device(Batch batch, const at::Device& device, int64_t) override { return batch.to(device); }
};

// Batches of one loader, then those of another; or one batch with the entries of both.
struct TwoLoaders : DataModule {
  explicit TwoLoaders(CombinedMode how) : mode(how) {}
  Loaders loaders(RunningStage stage) override {
    if (stage != RunningStage::train) return {};
    const auto loader = [](int64_t samples, uint64_t seed) {
      return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples, seed)),
                                          DataLoaderOptions{.batch_size = 4});
    };
    return {std::make_shared<CombinedLoader>(
        std::vector<CombinedLoader::Named>{{"a", loader(26, 1)}, {"b", loader(24, 2)}}, mode)};
  }
  CombinedMode mode;
};

struct OfBoth : Captured {
  StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor loss;
    for (size_t i = 0; i + 1 < batch.entries(); i += 2) {
      const Tensor part = at::mse_loss(forward(batch[i]), batch[i + 1]);
      loss = loss.defined() ? loss + part : part;
    }
    log("train_loss", loss);
    return loss;
  }
};

}  // namespace

TEST_CASE("on a GPU, a captured step is one launch, and nothing else but the copies of its batch from the host",
          "[gpu]") {
  require_gpus(1);
  if (!device_counts()) SKIP("steps are counted on simulated CUDA only");
  const TemporaryFolder folder;
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    CAPTURE(precision);
    TrainerOptions options = three_epochs_on_cuda(folder);
    options.precision = Spec<Precision>(precision);
    options.log_every_n_steps = 1000;
    options.gradient_clip_val = 0.5;
    const auto counting = std::make_shared<Counting>(13, 19);
    fit<Steady>(
        options, true,
        [&](TrainerComponents& components) {
          by_device(components);
          components.add(counting);
        },
        {}, 42, regression_data(42, 0));
    check_counts(*counting);
  }
}

TEST_CASE("on a GPU, images come into the memory format inside the captured step", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.memory_format = MemoryFormat::channels_last;
  options.log_every_n_steps = 1000;
  const auto counting = std::make_shared<Counting>(13, 19);
  const auto captured =
      check_same<Images>(options, images, [&](TrainerComponents& components) { components.add(counting); });
  CHECK(captured.module->in_format);
  if (device_counts()) check_counts(*counting);
}

TEST_CASE("on a GPU, tensors of captured batches that are kept keep their values", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  std::shared_ptr<Keeping> keeping;
  const auto captured = check_same<Captured>(three_epochs_on_cuda(folder), {}, [&](TrainerComponents& components) {
    keeping = std::make_shared<Keeping>();
    components.add(keeping);
  });
  CHECK_THAT(captured.told, ContainsSubstring("something keeps references to batch tensors"));
  REQUIRE(keeping->kept.size() == 33);
  for (size_t i = 0; i < keeping->kept.size(); ++i) {
    CAPTURE(i);
    CHECK(keeping->kept[i].equal(keeping->values[i]));
  }
}

TEST_CASE("on a GPU, captured steps get what transfer hooks make of the batch", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  check_same<Doubling>(three_epochs_on_cuda(folder));
  check_same<DoublingInPlace>(three_epochs_on_cuda(folder));
  check_same<Moving>(three_epochs_on_cuda(folder));
}

TEST_CASE("on a GPU, captured steps get batches of combined loaders", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  for (const CombinedMode mode : {CombinedMode::sequential, CombinedMode::min_size, CombinedMode::max_size_cycle}) {
    CAPTURE(static_cast<int>(mode));
    check_same<OfBoth>(three_epochs_on_cuda(folder), [mode] {
      const auto data = std::make_shared<TwoLoaders>(mode);
      fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
      return data;
    });
  }
}

TEST_CASE("on a GPU, captured steps get their batches with validation in between, and from new loaders each epoch",
          "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.val_check_interval = 3;
  options.reload_dataloaders_every_n_epochs = 1;
  const auto captured = check_same<Captured>(options, [] { return regression_data(42, 10); });
  CHECK(captured.report.captured_batches == 27);
}

TEST_CASE("on a GPU, an epoch's odd last batch is not captured even if the first recording is due", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.max_epochs = 6;
  // Four batches an epoch, the last of two samples.
  const auto captured = check_same<Captured>(options, [] { return regression_data(14, 0); });
  CHECK(captured.report.captured_batches == 14);
}

TEST_CASE("on a GPU, batches that are no longer shaped by a callback are read where the loader wrote them", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto sequences = [] {
    at::manual_seed(4);
    TensorDataModule::Sets sets;
    sets.train = Batch{{"x", at::randn({40, 16})}, {"y", at::randn({40, 2})}};
    const auto data = std::make_shared<TensorDataModule>(
        std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = true});
    fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
    return data;
  };
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.max_epochs = 4;
  options.log_every_n_steps = 1000;
  // The first twelve batches have sequences of 8 elements; ten batches later, the step is captured again.
  const auto counting = std::make_shared<Counting>(31, 38);
  const auto captured = check_same<MeanOfSequence>(options, sequences, [&](TrainerComponents& components) {
    components.add(std::make_shared<SequenceLengthWarmup>(
        SequenceLengthWarmup::Options{.start = 8, .duration = *Interval::parse("12st"), .step = 8, .keys = {"x"}}));
    components.add(counting);
  });
  CHECK_THAT(captured.told, !ContainsSubstring("something keeps references"));
  if (device_counts()) check_counts(*counting);
}

}  // namespace captured_inputs_gpu_test
