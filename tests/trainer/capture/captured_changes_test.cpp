// capture: host code that changes late in an epoch, in evaluations, and the memory of parameters; media of steps.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/metrics/ranking.h"
#include "trainer/capture/captured_fit.h"

namespace captured_changes_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Learns : BoringModule {
  Learns() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
};

// Does something else for some steps, which no other comparison meets. What it depends on is no member.
template <int64_t from, int64_t until>
struct ChangesLate : Learns {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Learns::training_step(batch, batch_idx);
    const int64_t step = run().progress().global_step;
    if (step >= from && step < until) output.loss = output.loss * 0.5;
    return output;
  }
};

template <int64_t from = 8, int64_t until = 1000000>
void check_error_at_end(const TrainerOptions& options, int64_t samples) {
  CAPTURE(samples);
  using Late = ChangesLate<from, until>;
  CHECK_THROWS_WITH(fit<Late>(options, true, on_cpu, {}, samples),
                    ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
  log::set_sink({}, nullptr);
}

}  // namespace

TEST_CASE("the last captured step of an epoch is compared, so a late change in the only epoch is found") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.max_epochs = 1;
  // 11 batches. The recording is compared at steps 5 and 14. The last batch is smaller and runs eagerly, or not.
  check_error_at_end(options, 42);
  check_error_at_end(options, 44);
}

TEST_CASE("the last captured steps of long epochs, of the first, the tenth, and of the last epoch are compared") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  check_error_at_end<30, 33>(options, 42);
  options.max_epochs = 11;
  check_error_at_end<107, 110>(options, 42);
  // The second epoch of 1,000 batches. The recording is compared at step 1,003 of the fit, too.
  check_error_at_end<1900, 2000>(options, 4000);
  // The last epoch of this process.
  options.stop_after = *Interval::parse("3ep");
  check_error_at_end<30, 33>(options, 42);
}

TEST_CASE("the last step of a fit with max_steps is compared, whether the length of an epoch is known or not") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.max_steps = 10;
  check_error_at_end(options, 400);
  const auto late = [&](const DataSource& data) {
    at::manual_seed(11);
    options.capture = true;
    TrainerComponents components;
    components.seed = 5;
    using Late = ChangesLate<8, 100>;
    return Trainer(options, components).fit(std::make_shared<Late>(), data);
  };
  DataSource stream;
  stream.train = {regression_stream(400)};
  CHECK_THROWS_WITH(late(stream), ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
}

namespace {

// Batches 3 and 5 to 7 of an epoch have two samples; from batch 6 of the second epoch on, their steps change.
struct ShortInside : Learns {
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    const int64_t index = run().progress().batches.started - 1;
    if (index != 3 && (index < 5 || index > 7)) return batch;
    Batch part;
    for (const auto& [name, value] : batch) part.add(name, std::get<Tensor>(value).slice(0, 0, 2));
    return part;
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Learns::training_step(batch, batch_idx);
    if (batch.size() == 2 && run().progress().epoch == 1 && batch_idx >= 6) output.loss = output.loss * 0.5;
    return output;
  }
};

}  // namespace

TEST_CASE("the last step of each shape in an epoch is compared, if it was the last one in the epoch before") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.max_epochs = 2;
  CHECK_THROWS_WITH(fit<ShortInside>(options, true, on_cpu, {}, 80),
                    ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
  log::set_sink({}, nullptr);
}

namespace {

// Hooks of an evaluation that change what training steps do.
struct ScaledByEnd : Learns {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Learns::training_step(batch, batch_idx);
    output.loss = output.loss * scale;
    return output;
  }
  void on_validation_epoch_end() override { scale *= 0.5; }
  double scale = 1;
};

struct SwitchedByStart : Learns {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Learns::training_step(batch, batch_idx);
    if (squares) output.loss = output.loss.square();
    return output;
  }
  void on_validation_start() override { squares = !squares; }
  bool squares = false;
};

// Not in a member, so that no change of bytes is seen.
struct ScaledByOther : ScaledByEnd {
  ScaledByOther() { other = 1; }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = Learns::training_step(batch, batch_idx);
    output.loss = output.loss * other;
    return output;
  }
  void on_validation_epoch_end() override { other *= 0.5; }
  inline static double other = 1;
};

template <class M>
Outcome<M> check_evaluations(int64_t interval, const char* text, int64_t accumulate = 1) {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.val_check_interval = interval;
  options.accumulate_grad_batches = accumulate;
  const auto data = [] { return regression_data(402, 12); };
  const auto plain = fit<M>(options, false, on_cpu, {}, 0, data());
  auto captured = fit<M>(options, true, on_cpu, {}, 0, data());
  CAPTURE(interval, accumulate, captured.told);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  CHECK_THAT(captured.told, ContainsSubstring(text));
  return captured;
}

}  // namespace

TEST_CASE("members that hooks of an evaluation inside an epoch change are found, and the step is captured again") {
  const int64_t accumulate = GENERATE(1, 2);
  for (const auto& captured : {check_evaluations<ScaledByEnd>(40, "captured again", accumulate).report,
                               check_evaluations<SwitchedByStart>(40, "captured again", accumulate).report,
                               check_evaluations<ScaledByOther>(40, "captured again", accumulate).report}) {
    CHECK_FALSE(captured.not_captured);
    CHECK(captured.captured_batches > 200);
  }
}

TEST_CASE("the message names the class and the place of the member that an evaluation has changed") {
  const auto captured = check_evaluations<ScaledByEnd>(40, "a member of ScaledByEnd at offset ");
  const size_t offset = reinterpret_cast<const std::byte*>(&captured.module->scale) -
                        reinterpret_cast<const std::byte*>(captured.module.get());
  CHECK_THAT(captured.told, ContainsSubstring("at offset " + std::to_string(offset) + " "));
}

TEST_CASE("a step that evaluations change again and again becomes eager, with a warning") {
  for (const int64_t interval : {2, 5, 8}) {
    const auto captured = check_evaluations<ScaledByEnd>(interval, "Training continues with eager steps");
    CHECK_THAT(captured.report.not_captured.value_or("captured"), ContainsSubstring("a member of ScaledByEnd"));
  }
}

namespace {

// Replaces the memory of a tensor of the module between steps.
enum class Replaced { parameter_by_set_data, parameter_by_set, buffer_by_set_data, strides };
template <Replaced what, int64_t every>
struct Swaps : Learns {
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(forward(batch[0]).matmul(factor), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  int on_train_batch_start(const Batch&, int64_t) override {
    const int64_t step = run().progress().global_step;
    if (step == 0 || step % every != 0) return 0;
    const at::NoGradGuard no_grad;
    Tensor weight = first->weight;
    if (what == Replaced::parameter_by_set_data) weight.set_data(weight.detach() * 0.99);
    if (what == Replaced::parameter_by_set) weight.set_((weight.detach() * 0.99).contiguous());
    if (what == Replaced::buffer_by_set_data) factor.set_data(factor * 0.99);
    if (what == Replaced::strides) factor.set_data(factor.t());
    return 0;
  }
  Tensor factor = register_buffer("factor", at::arange(1, 5, at::kFloat).view({2, 2}) * 0.25);
};

template <class M>
void check_swaps(bool stays_captured) {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<M>(options, false, on_cpu, {}, 160), captured = fit<M>(options, true, on_cpu, {}, 160);
  CAPTURE(captured.told);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  CHECK(captured.report.not_captured.has_value() == !stays_captured);
  if (stays_captured) return;
  CHECK_THAT(captured.told, ContainsSubstring("Training continues with eager steps"));
}

}  // namespace

TEST_CASE("parameters and buffers whose memory a hook replaces are recorded again, and too often they become eager") {
  SECTION("rarely") {
    check_swaps<Swaps<Replaced::parameter_by_set_data, 50>>(true);
    check_swaps<Swaps<Replaced::parameter_by_set, 50>>(true);
    check_swaps<Swaps<Replaced::buffer_by_set_data, 50>>(true);
    check_swaps<Swaps<Replaced::strides, 50>>(true);
  }
  SECTION("every few steps") {
    check_swaps<Swaps<Replaced::parameter_by_set_data, 5>>(false);
    check_swaps<Swaps<Replaced::parameter_by_set, 7>>(false);
    check_swaps<Swaps<Replaced::buffer_by_set_data, 6>>(false);
    check_swaps<Swaps<Replaced::strides, 4>>(false);
  }
}

namespace {

// Prints in validation steps and logs media, from a batch on.
template <int64_t from>
struct LogsMedia : Learns {
  LogsMedia() { calls = 0; }
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    ++calls;
    const Tensor out = forward(batch[0]);
    if (batch_idx >= from) {
      log_media(HistogramRecord{"outputs", out});
      print("a batch");
    }
    log("val_loss", at::mse_loss(out, batch[1]));
    return {};
  }
  inline static int64_t calls = 0;
};

template <int64_t from>
auto validated(bool captures, int64_t epochs) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = epochs;
  auto outcome = fit<LogsMedia<from>>(options, captures, on_cpu, {}, 0, regression_data(8, 26));
  size_t lines = 0;
  for (size_t at = 0; (at = outcome.told.find("a batch", at)) != std::string::npos; ++at) ++lines;
  return std::tuple(std::move(outcome), LogsMedia<from>::calls, lines);
}

template <int64_t from>
void check_media(bool stays_captured) {
  const auto [plain, calls, lines] = validated<from>(false, 2);
  const auto [captured, same_calls, same_lines] = validated<from>(true, 2);
  CAPTURE(from, captured.told);
  CHECK(same_lines == lines);
  REQUIRE(captured.logger->media.size() == plain.logger->media.size());
  for (size_t i = 0; i < plain.logger->media.size(); ++i) {
    CHECK(captured.logger->media[i].step == plain.logger->media[i].step);
    CHECK(std::get<HistogramRecord>(captured.logger->media[i].record)
              .values.equal(std::get<HistogramRecord>(plain.logger->media[i].record).values));
  }
  check_same_logs(plain, captured, "val_loss");
  CHECK(captured.report.validation_not_captured.has_value() == !stays_captured);
  if (stays_captured) return;
  CHECK(same_calls == calls);
  CHECK_THAT(*captured.report.validation_not_captured, ContainsSubstring("prints, or logs media"));
}

}  // namespace

namespace {

// After the media comes a metric that breaks the recording off.
struct BrokenOff : LogsMedia<1> {
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
    LogsMedia::validation_step(batch, batch_idx, loader_idx);
    auroc.update(batch[1], batch[1].argmax(1));
    if (batch_idx > 0) log("val_auroc", auroc);
    return {};
  }
  metrics::Auroc auroc{{.num_classes = 2}};
};

}  // namespace

TEST_CASE("media of a validation step whose recording is broken off are logged once") {
  const TemporaryFolder folder;
  const auto refused = fit<BrokenOff>(quiet(folder), true, on_cpu, {}, 0, regression_data(8, 26));
  CHECK_THAT(refused.report.validation_not_captured.value_or(""), ContainsSubstring("keeps all samples"));
  CHECK(refused.logger->media.size() == 6);
}

TEST_CASE("a validation step that logs media or prints is executed once for each batch, and is not captured") {
  check_media<0>(false);
  check_media<1>(false);
}

}  // namespace captured_changes_test
