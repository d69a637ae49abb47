// model_parallel and hybrid on virtual devices, against one device.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/strategies/placed_strategy.h"
#include "paired.h"
#include "support/expect_error.h"

namespace placed_strategy_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

namespace {

// A layout of the strategies, by the number of devices.
TrainerOptions layout(const TemporaryFolder& folder, const std::string& strategy, int devices, int64_t micro_batches) {
  const std::string half = std::to_string(devices / 2), last = std::to_string(devices - 1),
                    before = std::to_string(devices / 2 - 1);
  const std::string micro = ", micro_batches: " + std::to_string(micro_batches) + "}";
  if (strategy == "model_parallel")
    return placed(folder, strategy, devices, "{placement: {encoder: 0, decoder: " + last + "}" + micro);
  return placed(folder, strategy, devices,
                "{placement: {encoder: [0.." + before + "], decoder: [" + half + ".." + last + "]}" + micro);
}

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const auto& [name, value] : unique_parameters(module)) bytes += static_cast<int64_t>(value.nbytes());
  return bytes;
}

}  // namespace

TEST_CASE("model_parallel and hybrid on 2, 4 and 8 devices equal one device after 100 steps") {
  const int devices = GENERATE(2, 4, 8);
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const int64_t micro_batches = GENERATE(1, 3);
  CAPTURE(devices, strategy, micro_batches);
  const TemporaryFolder folder;
  const auto data = [] { return regression_data(13 * 24 + 3, 20, 13); };
  TrainerOptions one = quiet(folder), many = layout(folder, strategy, devices, micro_batches);
  for (TrainerOptions* options : {&one, &many}) {
    options->max_epochs = 4;
    options->gradient_clip_val = 0.5;
    // What float32 rounds in 100 steps depends on the processor's kernels.
    options->precision = Spec<Precision>("64-true");
  }
  const auto a = train<Pair>(one, {}, data()), b = train<Pair>(many, {}, data());
  CHECK(a.report.global_step == 100);
  CHECK(b.report.global_step == 100);
  CHECK(b.module->encoder->in->weight.device() == virtual_device(0));
  CHECK(b.module->decoder->in->weight.device() == virtual_device(strategy == "hybrid" ? devices / 2 : devices - 1));
  CHECK(b.module->scale.device() == virtual_device(0));
  CHECK(largest_difference(a.weights, b.weights) < 1e-10);
  for (const char* name : {"train_loss_epoch", "val_loss"})
    CHECK_THAT(metric_of(b.report.metrics, name), WithinAbs(metric_of(a.report.metrics, name), 1e-5));
}

TEST_CASE("GradientMonitor and SpikeDetection see one network, whatever devices its layers are on") {
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  CAPTURE(strategy);
  const TemporaryFolder folder;
  const auto logged = [](TrainerOptions options) {
    options.max_epochs = 1;
    options.precision = Spec<Precision>("64-true");
    Problems problems;
    for (const char* text : {"{class_path: GradientMonitor, init_args: {every: 1st}}",
                             "{class_path: SpikeDetection, init_args: {action: skip, rtol: 1e-9}}"}) {
      Spec<Callback>& callback = options.callbacks.emplace_back("GradientMonitor");
      callback.read(parse_yaml(text, "test", problems), problems, "callbacks");
    }
    problems.throw_if_any();
    TrainerComponents components;
    const auto memory = std::make_shared<MemoryLogger>();
    components.loggers = {memory};
    train<Pair>(std::move(options), {}, regression_data(), {}, components);
    return memory;
  };
  const auto one = logged(quiet(folder)), many = logged(layout(folder, strategy, 4, 2));
  for (const char* name : {"grad_2.0_norm/encoder.in", "grad_2.0_norm/scale", "weight_2.0_norm/decoder.out",
                           "update_ratio/decoder.in", "grad_2.0_norm_total", "update_ratio_total", "loss_spikes"}) {
    CAPTURE(name);
    const auto expected = one->values(name), got = many->values(name);
    REQUIRE_FALSE(expected.empty());
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].first == expected[i].first);
      CHECK_THAT(got[i].second, WithinAbs(expected[i].second, 1e-8));
    }
  }
}

TEST_CASE("accumulation, precisions and skipped steps work over several devices") {
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const std::string precision = GENERATE("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true");
  CAPTURE(strategy, precision);
  const TemporaryFolder folder;
  TrainerOptions one = on_virtual(folder, "single_device", 1), many = layout(folder, strategy, 4, 2);
  for (TrainerOptions* options : {&one, &many}) {
    options->accumulate_grad_batches = 3;
    options->precision = Spec<Precision>(precision);
    options->on_nonfinite = OnNonFinite::skip;
    options->gradient_clip_val = 0.5;
    options->max_epochs = 4;
  }
  const auto a = train<Pair>(one), b = train<Pair>(many);
  CHECK(a.report.global_step == b.report.global_step);
  if (precision == "32-true")
    CHECK(largest_difference(a.weights, b.weights) < 1e-6);
  else if (precision == "64-true")
    CHECK(largest_difference(a.weights, b.weights) < 1e-12);
  CHECK_THAT(metric_of(b.report.metrics, "val_loss"), WithinAbs(metric_of(a.report.metrics, "val_loss"), 0.03));
}

TEST_CASE("auto_micro_batch: a backward that fails before hybrid adds the gradients of copies leaves none of them") {
  struct Scarce : Pair {
    using Pair::Pair;
    int64_t failures = 0;
    void backward(const Tensor& loss, const BackwardOptions& how) override {
      Pair::backward(loss, how);
      // Each copy has its gradients now.
      const bool fails = global_step() == 1 && failures == 0;
      failures += fails ? 1 : 0;
      TORCH_CHECK_WITH(OutOfMemoryError, !fails, "no memory, as the test requires");
    }
  };
  const int64_t accumulate = GENERATE(1, 2);
  CAPTURE(accumulate);
  const TemporaryFolder folder;
  TrainerOptions options = layout(folder, "hybrid", 4, 1);
  options.precision = Spec<Precision>("64-true");
  options.accumulate_grad_batches = accumulate;
  const auto quiet_run = train<Pair>(options);
  options.auto_micro_batch = true;
  const auto scarce = train<Scarce>(options);
  CHECK(scarce.module->failures == 1);
  CHECK(scarce.report.global_step == quiet_run.report.global_step);
  CHECK(largest_difference(quiet_run.weights, scarce.weights) < 1e-10);
}

TEST_CASE("auto_micro_batch: a batch that is repeated begins with the restored buffers on each device of hybrid") {
  /// Its outputs depend on how often it was called.
  struct Growing : torch::nn::Module {
    torch::nn::Linear in{nullptr};
    Tensor calls;
    Growing() {
      in = register_module("in", torch::nn::Linear(4, 2));
      calls = register_buffer("calls", at::zeros({}));
    }
    Tensor forward(const Tensor& x) {
      const Tensor factor = calls + 1;
      {
        const at::NoGradGuard no_grad;
        calls.add_(1);
      }
      return in->forward(x) * factor;
    }
  };
  struct Scarce : LightningModule {
    struct Options {
      bool late = false;
      void fields(Fields& f) { f(late, "late", "Memory runs out after the backward pass."); }
    };
    Options options;
    nn::Placed<Growing> part;
    int64_t failures = 0;
    explicit Scarce(const Options& given) : options(given), part(nn::register_placed<Growing>(*this, "part")) {}
    StepOutput training_step(const Batch& batch, int64_t) override {
      if (!options.late) fail_once();
      const Tensor y = part(batch[0]);
      return at::mse_loss(y, batch[1].to(y.device()));
    }
    void on_after_backward() override {
      if (options.late) fail_once();
    }
    void fail_once() {
      const bool fails = global_step() == 1 && failures == 0;
      failures += fails ? 1 : 0;
      TORCH_CHECK_WITH(OutOfMemoryError, !fails, "no memory, as the test requires");
    }
    OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(AdamW::Options{}); }
  };
  const TemporaryFolder folder;
  TrainerOptions options = placed(folder, "hybrid", 2, "{placement: {part: [0..1]}}");
  options.auto_micro_batch = true;
  options.limit_val_batches = BatchLimit(int64_t{0});
  const auto early = train<Scarce>(options), late = train<Scarce>(options, {.late = true});
  CHECK(early.module->failures == 1);
  CHECK(late.module->failures == 1);
  CHECK(largest_difference(early.weights, late.weights) == 0);
}

TEST_CASE("uneven and tiny batches take fewer parts and fewer devices") {
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const TemporaryFolder folder;
  for (const int64_t batch : {1, 2, 5}) {
    CAPTURE(strategy, batch);
    TrainerOptions one = quiet(folder), many = layout(folder, strategy, 8, 4);
    const auto a = train<Pair>(one, {}, regression_data(11, 0, batch)),
               b = train<Pair>(many, {}, regression_data(11, 0, batch));
    CHECK(largest_difference(a.weights, b.weights) < 1e-6);
  }
}

TEST_CASE(
    "model_parallel copies the code forward and its gradient back, hybrid chunks, weights and gradients of its groups "
    "too") {
  struct Plain : Pair {
    using Pair::Pair;
    Tensor forward(const Tensor& x) override { return decoder(encoder(x)); }
    StepOutput training_step(const Batch& batch, int64_t) override { return loss_of(batch); }
  };
  const TemporaryFolder folder;
  constexpr int64_t kBatch = 8, kSteps = 5, kCode = 6 * 4 * kBatch, kIn = 4 * 4 * kBatch, kOut = 2 * 4 * kBatch,
                    kScalar = 4;
  const auto bytes = [&](TrainerOptions options) {
    options.limit_val_batches = BatchLimit(int64_t{0});
    options.on_nonfinite = OnNonFinite::off;  // its checks bring norms together
    reset_device_copies();
    const auto trained = train<Plain>(std::move(options), {}, regression_data(kBatch * kSteps, 0, kBatch));
    REQUIRE(trained.report.global_step == kSteps);
    for (const auto& c : device_copies())
      UNSCOPED_INFO(c.from.str() << " > " << c.to.str() << " " << c.copies << " copies " << c.bytes);
    return std::pair(bytes_between_virtual_devices(),
                     bytes_of(*trained.module->encoder) + bytes_of(*trained.module->decoder));
  };
  // Code, its gradient, the target, the loss and its gradient.
  CHECK(bytes(layout(folder, "model_parallel", 2, 1)).first == kSteps * (2 * kCode + kOut + 2 * kScalar));
  CHECK(bytes(layout(folder, "model_parallel", 2, 4)).first == kSteps * (2 * kCode + kOut + 4 * 2 * kScalar));
  // Four devices: half of the samples, the code and the output goes to the second of a group or comes from there; so
  // do, in each step, its weights and their gradients. From group to group each chunk goes straight to its device.
  const auto [hybrid, weights] = bytes(layout(folder, "hybrid", 4, 1));
  const int64_t flow = kIn / 2 + kCode / 2 * 2  // encoder: samples there, code back, its gradient there
                       + kCode * 2              // code to the decoder's devices, its gradient back
                       + kOut / 2 * 2 + kOut +
                       2 * kScalar;  // output back, its gradient there; target, loss and its gradient
  CHECK(hybrid == kSteps * (flow + 2 * weights));
}

TEST_CASE("optimizer state is on the device of its parameter") {
  const TemporaryFolder folder;
  struct Looks : Callback {
    std::map<std::string, at::Device> at;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      const StateTree whole = run.optimizers()[0]->state();
      for (const auto& [name, state] : whole.at("state").as_map())
        at.emplace(name, state.at("exp_avg").tensor().device());
    }
  };
  auto looks = std::make_shared<Looks>();
  TrainerComponents components;
  components.add(looks);
  train<Pair>(layout(folder, "model_parallel", 2, 1), {}, regression_data(), {}, components);
  CHECK(looks->at.at("encoder.in.weight") == virtual_device(0));
  CHECK(looks->at.at("decoder.in.weight") == virtual_device(1));
}

TEST_CASE("a run over several devices continues bit for bit, and on one device") {
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const int64_t micro_batches = GENERATE(1, 3);
  CAPTURE(strategy, micro_batches);
  const TemporaryFolder folder, other;
  TrainerOptions whole = layout(folder, strategy, 4, micro_batches), part = layout(other, strategy, 4, micro_batches);
  whole.max_epochs = part.max_epochs = 2;
  const Pair::Options dropout{.dropout = 0.3};
  const auto a = train<Pair>(whole, dropout);
  part.max_steps = 7;
  const auto b = train<Pair>(part, dropout);
  part.max_steps = -1;
  const auto c = train<Pair>(part, dropout, regression_data(), b.report.last_checkpoint->string());
  CHECK(same_weights(a.weights, c.weights));

  // Without dropout one device sees the same.
  TrainerOptions one = quiet(folder), many = layout(folder, strategy, 4, micro_batches);
  one.max_epochs = many.max_epochs = 2;
  const auto alone = train<Pair>(one);
  many.max_steps = 9;
  const auto begun = train<Pair>(many);
  const auto ended = train<Pair>(one, {}, regression_data(), begun.report.last_checkpoint->string());
  CHECK(largest_difference(alone.weights, ended.weights) < 1e-6);
}

TEST_CASE("two runs with micro-batches are bit-identical") {
  const TemporaryFolder folder;
  const auto run = [&] {
    return train<Pair>(layout(folder, "model_parallel", 2, 4), {}, regression_data(160, 0, 16)).weights;
  };
  const auto first = run();
  for (int i = 0; i < 3; ++i) CHECK(same_weights(first, run()));
}

TEST_CASE("evaluation and prediction run over several devices, in sample order") {
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const TemporaryFolder folder;
  TrainerOptions one = quiet(folder), many = layout(folder, strategy, 8, 2);
  const auto data = [] { return regression_data(8, 23, 5); };
  seed_everything(3);
  const auto module = make_component<LightningModule, Pair>(Pair::Options{});
  const auto a = Trainer(one).validate(module, data());
  const auto c = Trainer(one).predict(module, data());
  const auto b = Trainer(many).validate(module, data());
  const auto d = Trainer(many).predict(module, data());
  CHECK_THAT(metric_of(b.loaders[0], "val_loss"), WithinAbs(metric_of(a.loaders[0], "val_loss"), 1e-6));
  CHECK((c.loaders[0]["y"].allclose(d.loaders[0]["y"], 1e-5, 1e-6)));
}

namespace {

// Placed by itself, without nn::Placed: on virtual:0 and virtual:1.
struct ByHand : LightningModule {
  struct Options {
    bool forgets = false, moves = true;
    void fields(Fields& f) {
      f(forgets, "forgets", "Leaves the decoder on the CPU.");
      f(moves, "moves", "Moves the code on its way.");
    }
  };
  Options options;
  torch::nn::Linear encoder{nullptr}, decoder{nullptr};
  explicit ByHand(const Options& given) : options(given) {
    encoder = register_module("encoder", torch::nn::Linear(4, 6));
    decoder = register_module("decoder", torch::nn::Linear(6, 2));
  }
  void configure_model() override {
    if (run().device().is_cpu()) return;
    encoder->to(virtual_device(0));
    if (!options.forgets) decoder->to(virtual_device(1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor code = encoder->forward(batch[0]).relu();
    if (options.moves) code = code.to(decoder->weight.device());
    const Tensor y = decoder->forward(code);
    return at::mse_loss(y, batch[1].to(y.device()));
  }
  OptimizerPlan configure_optimizers() override {
    return std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9});
  }
};

}  // namespace

TEST_CASE("a manually placed module is not moved, and its loss is taken from its device") {
  const TemporaryFolder folder;
  const auto a = train<ByHand>(quiet(folder));
  const auto b = train<ByHand>(placed(folder, "model_parallel", 2, "{micro_batches: 2}"));
  CHECK(b.module->encoder->weight.device() == virtual_device(0));
  CHECK(b.module->decoder->weight.device() == virtual_device(1));
  CHECK(largest_difference(a.weights, b.weights) < 1e-6);
}

TEST_CASE("what is on a wrong device is an error that names module, parameter and both devices") {
  const TemporaryFolder folder;
  const TrainerOptions by_hand = placed(folder, "model_parallel", 2, "{}");
  const std::string forgotten = message_of<ConfigError>([&] { train<ByHand>(by_hand, {.forgets = true}); });
  CHECK_THAT(forgotten, ContainsSubstring("'decoder.weight' of 'decoder' is on cpu") &&
                            ContainsSubstring("virtual:0, virtual:1") && ContainsSubstring("configure_model()"));
  const std::string met = message_of<Error>([&] { train<ByHand>(by_hand, {.moves = false}); });
  CHECK_THAT(met, ContainsSubstring("virtual:0 has 'encoder' with 'encoder.weight'") &&
                      ContainsSubstring("virtual:1 has 'decoder' with 'decoder.weight'"));

  struct PlacedByHand : Pair {
    using Pair::Pair;
    void configure_model() override {
      encoder->to(virtual_device(0));
      decoder->to(virtual_device(1));
      scale.set_data(scale.to(virtual_device(0)));
    }
  };
  const std::string input = message_of<Error>([&] { train<PlacedByHand>(by_hand); });
  CHECK_THAT(input, ContainsSubstring("'decoder'") && ContainsSubstring("decoder.in.weight") &&
                        ContainsSubstring("virtual:0") && ContainsSubstring("virtual:1"));
}

TEST_CASE("placements are refused with the existing devices and modules") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& strategy, int devices, const std::string& init_args) {
    return message_of<ConfigError>([&] { train<Pair>(placed(folder, strategy, devices, init_args)); });
  };
  CHECK_THAT(message("model_parallel", 2, "{placement: {encodr: 0}}"),
             ContainsSubstring("'encodr'") && ContainsSubstring("encoder, decoder"));
  CHECK_THAT(message("model_parallel", 2, "{placement: {encoder: 5}}"),
             ContainsSubstring("5 is not among the devices of the run: virtual:0, virtual:1"));
  CHECK_THAT(message("model_parallel", 2, "{placement: {encoder: cuda:1}}"), ContainsSubstring("cuda:1 is not among"));
  CHECK_THAT(message("model_parallel", 2, "{placement: {encoder: [0, 1]}}"),
             ContainsSubstring("must be on one device") && ContainsSubstring("hybrid"));
  CHECK_THAT(message("hybrid", 2, "{placement: {encoder: [0, 0]}}"), ContainsSubstring("is listed twice"));
  CHECK_THAT(message("hybrid", 2, "{placement: {encoder: 1-3}}"), ContainsSubstring("encoder"));
  CHECK_THAT(message("hybrid", 2, "{}"), ContainsSubstring("placement"));
  CHECK_THAT(message_of<ConfigError>([&] { train(placed(folder, "model_parallel", 2, "{placement: {first: 0}}")); }),
             ContainsSubstring("nn::Placed"));
  struct Manual : Pair {
    using Pair::Pair;
    bool automatic_optimization() const override { return false; }
  };
  CHECK_THAT(message_of<ConfigError>([&] { train<Manual>(layout(folder, "model_parallel", 2, 2)); }),
             ContainsSubstring("micro_batches: 1"));
}

TEST_CASE("a tensor that two submodules share cannot be on two devices") {
  struct Tied : Pair {
    explicit Tied(const Pair::Options& given)
        : Pair([&] {
            Pair::Options square = given;
            square.code = 4;
            return square;
          }()) {
      decoder->in->weight = encoder->in->weight;
      tie_parameters(*this, "encoder.in.weight", "decoder.in.weight");
    }
  };
  const TemporaryFolder folder;
  const std::string message = message_of<ConfigError>([&] { train<Tied>(layout(folder, "model_parallel", 2, 1)); });
  CHECK_THAT(message, ContainsSubstring("'encoder.in.weight' and 'decoder.in.weight' are one tensor") &&
                          ContainsSubstring("virtual:0 and on virtual:1"));
  const auto one = train<Tied>(quiet(folder));
  const auto together =
      train<Tied>(placed(folder, "model_parallel", 2, "{placement: {encoder: 1, decoder: 1}, micro_batches: 2}"));
  CHECK(largest_difference(one.weights, together.weights) < 1e-6);
}

TEST_CASE("a module with manual optimization works over several devices without micro-batches") {
  struct Manual : Pair {
    using Pair::Pair;
    bool automatic_optimization() const override { return false; }
    StepOutput training_step(const Batch& batch, int64_t) override {
      const Tensor loss = loss_of(batch);
      manual_backward(loss);
      clip_gradients(optimizers().optimizer(), 0.5);
      optimizers().step();
      optimizers().zero_grad();
      return loss;
    }
  };
  const std::string strategy = GENERATE("model_parallel", "hybrid");
  const TemporaryFolder folder;
  CHECK(largest_difference(train<Manual>(quiet(folder)).weights,
                           train<Manual>(layout(folder, strategy, 4, 1)).weights) < 1e-6);
}

TEST_CASE("placements are written as they can be read, and devices are ranges, lists and names") {
  const auto read = [](const std::string& text) {
    DeviceGroup group;
    Problems problems;
    FieldTraits<DeviceGroup>::read(*parse_yaml("x: " + text, "test", problems).find("x"), group, problems, "placement");
    problems.throw_if_any();
    return group;
  };
  CHECK(read("3").indices == std::vector<int64_t>{3});
  CHECK(read("cuda:1").type == "cuda");
  CHECK(read("[0..3]").indices == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(read("0..1").indices == std::vector<int64_t>{0, 1});
  CHECK(read("[cuda:0..1, cuda:5]").indices == std::vector<int64_t>{0, 1, 5});
  for (const char* text : {"3", "cuda:1", "[0..3]", "[cuda:0..1, cuda:5]"}) {
    const DeviceGroup group = read(text);
    const std::string written = to_yaml(ConfigNode::map({{"x", FieldTraits<DeviceGroup>::write(group)}}));
    DeviceGroup again;
    Problems problems;
    FieldTraits<DeviceGroup>::read(*parse_yaml(written, "test", problems).find("x"), again, problems, "placement");
    problems.throw_if_any();
    CHECK(again.indices == group.indices);
    CHECK(again.type == group.type);
  }
  for (const char* bad : {"3..1", "-1", "[]", "a", "[cuda:0, virtual:1]", "{a: 1}", "99999999"})
    CHECK_THROWS_AS(read(bad), ConfigError);
}

TEST_CASE("devices of a pipeline work at the same time, and say how much") {
  struct Reads : Callback {
    PlacedStrategy* strategy = nullptr;
    std::string report;
    double busy_at_start = 0, busy = 0, seconds = 0;
    static double busy_s() { return *find_accelerator("virtual")->busy_s(0) + *find_accelerator("virtual")->busy_s(1); }
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) override {
      if (batch_idx == 1) busy_at_start = busy_s(), seconds = run.elapsed_s();
      if (batch_idx == 9) busy = busy_s() - busy_at_start, seconds = run.elapsed_s() - seconds;
    }
    void on_train_end(RunContext&) override { report = strategy->device_report(); }
  };
  const auto work = [](int64_t micro_batches) {
    const TemporaryFolder folder;
    const auto strategy = std::make_shared<ModelParallelStrategy>(
        ModelParallelStrategy::Options{.placement = {{"encoder", 0}, {"decoder", 1}}, .micro_batches = micro_batches});
    auto reads = std::make_shared<Reads>();
    reads->strategy = strategy.get();
    TrainerComponents components;
    components.add(reads);
    components.strategy = strategy;
    train<Pair>(on_virtual(folder, "model_parallel", 2), {.hidden = 1024, .code = 1024},
                regression_data(1024 * 10, 0, 1024), {}, components);
    CHECK_THAT(reads->report, ContainsSubstring("busy: virtual:0 ") && ContainsSubstring(" % · virtual:1 ") &&
                                  ContainsSubstring(" s"));
    return reads->busy / reads->seconds;
  };
  const double whole = work(1), cut = work(4);
  CAPTURE(whole, cut);
  CHECK(whole < 1.05);
  CHECK(cut > 1.1 * whole);
}

}  // namespace placed_strategy_test
