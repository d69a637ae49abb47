// Whatever options a run has: its captured steps give the numbers of eager ones bit for bit.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <random>

#include "fulgur/core/text/text.h"
#include "fulgur/optim/adagrad.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/lion.h"
#include "fulgur/optim/muon.h"
#include "fulgur/optim/rmsprop.h"
#include "support/gpu.h"
#include "trainer/capture/captured_fit.h"

namespace captured_relation_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// Rates that float32 has exactly, so that a rate on the device and one on the host give the same bits.
constexpr double kRate = 0.03125;

struct Choices {
  explicit Choices(uint32_t seed) {
    std::mt19937 draw(seed);
    const auto one_of = [&](auto... values) {
      const std::array all{values...};
      return all[draw() % all.size()];
    };
    precision = one_of("32-true", "bf16-mixed", "16-mixed");
    clip = one_of("none", "norm", "value");
    optimizer = one_of("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Lion", "SGD with dampening");
    schedule = one_of(0, 3, 5);
    every = one_of(1, 1, 2, 3, 4);
    samples = one_of(40, 41, 42, 44, 46);
    validate_each = one_of(0, 2, 5);
    log_each = one_of(1, 3, 7);
    widens = one_of(0, 0, 1) != 0;
    reloads = one_of(0, 1) != 0;
    grad_norm = one_of(0, 1) != 0;
    number = one_of(0, 1) != 0;
    keeps_batches = one_of(0, 0, 0, 1) != 0;
    dropout = one_of(0.0, 0.25);
    loss.on_step = one_of(0, 1) != 0;
    loss.on_epoch = !*loss.on_step || one_of(0, 1) != 0;
    loss.reduce_fx = one_of(Reduce::mean, Reduce::sum, Reduce::max, Reduce::last);
  }
  std::string text() const {
    return cat(precision, ", clip ", clip, ", ", optimizer, ", rates change each ", schedule, ", accumulation ", every,
               widens ? " and more" : "", ", samples ", samples, ", validation each ", validate_each, ", rows each ",
               log_each, reloads ? ", new loaders" : "", grad_norm ? ", grad_norm" : "", number ? ", a number" : "",
               keeps_batches ? ", batches are kept" : "", ", dropout ", dropout);
  }
  std::string precision, clip, optimizer;
  std::string cycles;  // a schedule that changes the momentum too
  int64_t schedule = 0, every = 1, samples = 40, validate_each = 0, log_each = 1;
  bool widens = false, reloads = false, grad_norm = false, number = false, keeps_batches = false;
  double dropout = 0;
  LogOptions loss;
};

template <class O>
std::shared_ptr<Optimizer> make_optimizer() {
  typename O::Options options;
  options.lr = kRate;
  return std::make_shared<O>(options);
}

struct Chosen : BoringModule {
  Chosen() : BoringModule(now->dropout) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss, now->loss);
    if (now->number) log("number", 0.5, {.on_epoch = true});
    return loss;
  }
  OptimizerPlan configure_optimizers() override {
    std::shared_ptr<Optimizer> optimizer = make_optimizer<Adagrad>();
    if (now->optimizer == "Adam") optimizer = make_optimizer<Adam>();
    if (now->optimizer == "AdamW") optimizer = make_optimizer<AdamW>();
    if (now->optimizer == "SGD") optimizer = std::make_shared<SGD>(SGD::Options{.lr = kRate, .momentum = 0.5});
    if (now->optimizer == "SGD with dampening")
      optimizer = std::make_shared<SGD>(SGD::Options{.lr = kRate, .momentum = 0.5, .dampening = 0.25});
    if (now->optimizer == "RMSprop")
      optimizer = std::make_shared<RMSprop>(RMSprop::Options{.lr = kRate, .momentum = now->cycles.empty() ? 0 : 0.5});
    if (now->optimizer == "Lion") optimizer = make_optimizer<Lion>();
    if (now->optimizer == "Muon") optimizer = make_optimizer<Muon>();
    if (now->cycles == "OneCycleLR") {
      OneCycleLR::Options cycle;
      cycle.max_lr = kRate;
      return {optimizer,
              SchedulerConfig{.scheduler = std::make_shared<OneCycleLR>(cycle), .interval = ScheduleInterval::step}};
    }
    if (now->cycles == "CyclicLR") {
      CyclicLR::Options cycle;
      cycle.base_lr = kRate / 8;
      cycle.max_lr = kRate;
      cycle.step_size_up = 7;
      return {optimizer,
              SchedulerConfig{.scheduler = std::make_shared<CyclicLR>(cycle), .interval = ScheduleInterval::step}};
    }
    if (now->schedule == 0) return optimizer;
    StepLR::Options steps;
    steps.step_size = now->schedule;
    steps.gamma = 0.5;
    return {optimizer,
            SchedulerConfig{.scheduler = std::make_shared<StepLR>(steps), .interval = ScheduleInterval::step}};
  }
  static inline const Choices* now = nullptr;
};

struct Widening : Callback {
  void on_train_epoch_start(RunContext& run) override {
    run.set_accumulation(Chosen::now->every + run.progress().epoch);
  }
};

struct Keeping : Callback {
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch& batch, int64_t batch_idx) override {
    if (batch_idx == 8) kept.push_back(batch);
  }
  std::vector<Batch> kept;
};

// A mean of the outputs in a buffer, which `in_step` replaces in each step.
struct Averaging : Chosen {
  Averaging() { average = register_buffer("average", at::zeros({2})); }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    const Tensor mean = forward(batch[0]).detach().mean(0);
    if (in_step)
      average.set_data(average * 0.75 + mean * 0.25);
    else
      average.mul_(0.75).add_(mean, 0.25);
    return Chosen::training_step(batch, i);
  }
  Tensor average;
  static inline bool in_step = false;
};

Outcome<Chosen> run(const Choices& choices, bool captures) {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs_on_cuda(folder);
  options.precision = Spec<Precision>(choices.precision);
  if (choices.clip != "none") {
    options.gradient_clip_val = 0.25;
    options.gradient_clip_algorithm = *enum_from<ClipAlgorithm>(choices.clip);
  }
  options.accumulate_grad_batches = choices.every;
  options.log_every_n_steps = choices.log_each;
  options.log_grad_norm = choices.grad_norm;
  options.reload_dataloaders_every_n_epochs = choices.reloads ? 1 : 0;
  if (choices.validate_each > 0) options.val_check_interval = choices.validate_each;
  Chosen::now = &choices;
  return fit<Chosen>(
      options, captures,
      [&](TrainerComponents& components) {
        by_device(components);
        if (choices.widens) components.add(std::make_shared<Widening>());
        if (choices.keeps_batches) components.add(std::make_shared<Keeping>());
      },
      {}, choices.samples, regression_data(choices.samples, choices.validate_each > 0 ? 10 : 0));
}

bool same_bits(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("on a GPU, captured steps equal eager ones bit for bit, whatever the options", "[gpu]") {
  require_gpus(1);
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    const Choices choices(seed);
    CAPTURE(seed, choices.text());
    const auto plain = run(choices, false), captured = run(choices, true);
    CAPTURE(captured.told);
    CHECK(captured.report.captured_batches > 0);
    CHECK_THAT(captured.told, !ContainsSubstring("not captured"));
    CHECK(same_weights(plain.weights, captured.weights));
    CHECK(plain.report.global_step == captured.report.global_step);
    for (const char* name : {"train_loss", "train_loss_step", "train_loss_epoch", "val_loss", "grad_norm",
                             "number_step", "number_epoch", "loss_scale"}) {
      CAPTURE(name);
      const auto left = plain.logger->values(name), right = captured.logger->values(name);
      CHECK(std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& a, const auto& b) {
        return a.first == b.first && same_bits(a.second, b.second);
      }));
    }
  }
}

// Its eager update rounds once while the captured one does twice, and orthogonalizes in bfloat16.
TEST_CASE("on a GPU, captured steps of Muon equal eager ones except for rounding, with a schedule too", "[gpu]") {
  require_gpus(1);
  Choices choices(1);
  choices.optimizer = "Muon";
  choices.precision = GENERATE("32-true", "16-mixed");
  choices.schedule = 3;
  choices.every = 1;
  choices.clip = "none";
  choices.widens = false;
  const auto plain = run(choices, false), captured = run(choices, true);
  CAPTURE(captured.told);
  CHECK(captured.report.captured_batches > 0);
  CHECK_FALSE(captured.report.not_captured);
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value, captured.weights.at(name), 1e-3, 5e-3));
  }
}

// Whether or not an optimizer can be captured with such a schedule: a refusal leaves no trace in its rates.
TEST_CASE("on a GPU, capture follows schedules that cycle the momentum like eager steps", "[gpu]") {
  require_gpus(1);
  Choices choices(1);
  choices.precision = "32-true";
  choices.clip = "none";
  choices.every = 1;
  choices.widens = false;
  choices.dropout = 0;
  choices.cycles = GENERATE("OneCycleLR", "CyclicLR");
  choices.optimizer = GENERATE("Adam", "AdamW", "SGD", "RMSprop", "Lion", "Muon");
  const auto plain = run(choices, false), captured = run(choices, true);
  CAPTURE(choices.cycles, choices.optimizer, captured.told);
  CHECK((captured.report.captured_batches > 0) != captured.report.not_captured.has_value());
  // The device has rates in float32.
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value, captured.weights.at(name), 1e-3, choices.optimizer == "Muon" ? 5e-3 : 1e-4));
  }
}

// What a callback or the step itself changes on the host between launches.
TEST_CASE("on a GPU, captured steps follow numbers of the optimizer and memory that are exchanged, or say why not",
          "[gpu]") {
  require_gpus(1);
  struct Changing : Callback {
    std::string what;
    explicit Changing(std::string kind) : what(std::move(kind)) {}
    void on_train_batch_start(RunContext& run, const Batch&, int64_t) override {
      Optimizer& optimizer = *run.optimizers().front();
      if (what == "weight decay in each step")
        for (ParamGroup& group : optimizer.groups())
          group.weight_decay = 0.5 / static_cast<double>(1 + run.progress().global_step);
      if (run.progress().global_step != 12) return;
      if (what == "weight_decay")
        for (ParamGroup& group : optimizer.groups()) group.weight_decay = 0.5;
      if (what == "momentum" || what == "beta") optimizer.set_momentum(0.25);
      if (what == "parameters")
        for (Tensor parameter : run.module().parameters()) parameter.set_data(parameter.detach().clone());
      if (what == "buffer")
        for (Tensor buffer : run.module().buffers()) buffer.set_data(buffer.clone());
    }
  };
  Choices choices(1);
  choices.precision = "32-true";
  choices.clip = "none";
  choices.every = 1;
  choices.schedule = 0;
  choices.dropout = 0;
  const std::string what =
      GENERATE("weight_decay", "weight decay in each step", "momentum", "beta", "parameters", "buffer", "step");
  choices.optimizer = what == "momentum" ? "SGD" : "AdamW";
  Chosen::now = &choices;
  Averaging::in_step = what == "step";
  const auto run = [&](bool captures) {
    const TemporaryFolder folder;
    return fit<Averaging>(three_epochs_on_cuda(folder), captures, [&](TrainerComponents& components) {
      by_device(components);
      components.add(std::make_shared<Changing>(what));
    });
  };
  const auto plain = run(false), captured = run(true);
  CAPTURE(what, captured.told);
  CHECK(same_weights(plain.weights, captured.weights));
  if (what == "step") {
    CHECK(captured.report.captured_batches == 0);
    CHECK_THAT(captured.told, ContainsSubstring("replaces the memory of 'average'"));
  } else if (what == "weight decay in each step") {
    CHECK(captured.report.captured_batches == 0);
    CHECK_THAT(captured.told, ContainsSubstring("the weight decay or the momentum of AdamW changes in each step"));
  } else {
    CHECK(captured.report.captured_batches > 10);
  }
}

}  // namespace captured_relation_gpu_test
