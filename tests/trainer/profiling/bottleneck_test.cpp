// The rules of `trainer fit --profile`, without a run.
#include "profiling/bottleneck.h"

#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "profiling/step_costs.h"

namespace bottleneck_test {

using namespace fulgur::detail;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

// A step of 10 ms.
StepCosts costs(double data, double compute, double callbacks = 0, double exchange = 0, double device_wait = 0) {
  StepCosts made;
  made.steps = 20;
  made.step_s = 10e-3;
  made.data_s = data * 10e-3;
  made.compute_s = compute * 10e-3;
  made.callbacks_s = callbacks * 10e-3;
  made.exchange_s = exchange * 10e-3;
  made.device_wait_s = device_wait * 10e-3;
  made.samples = 64;
  return made;
}

RunTraits on_gpu() {
  RunTraits run;
  run.on_cpu = false;
  return run;
}

bool advises(const Bottleneck& found, const std::string& yaml) {
  return std::ranges::any_of(found.advice, [&](const Advice& each) { return each.yaml.find(yaml) != yaml.npos; });
}

}  // namespace

TEST_CASE("on the CPU the part with at least half of the step bounds the run") {
  CHECK(find_bottleneck(costs(0.7, 0.2), {}).bound == Bound::data);
  CHECK(find_bottleneck(costs(0.1, 0.8), {}).bound == Bound::device);
  CHECK(find_bottleneck(costs(0.1, 0.2, 0.6), {}).bound == Bound::host);
  CHECK(find_bottleneck(costs(0.1, 0.2, 0.0, 0.6), {}).bound == Bound::exchange);
  CHECK(find_bottleneck(costs(0.3, 0.4), {}).bound == Bound::nothing);
  const Bottleneck found = find_bottleneck(costs(0.25, 0.4, 0.1, 0.05), {});
  CHECK(found.data == Approx(0.25));
  CHECK(found.device == Approx(0.4));
  CHECK(found.exchange == Approx(0.05));
  CHECK(found.host == Approx(0.3));  // callbacks, and what was not measured
}

TEST_CASE("a host that waits for its accelerator is not what bounds the run") {
  // The host launches for 6 ms of 10, but still has time to wait.
  const Bottleneck device = find_bottleneck(costs(0.2, 0.6, 0, 0, 0.1), on_gpu());
  CHECK(device.bound == Bound::device);
  CHECK_FALSE(device.launches);
  CHECK(device.data == 0);
  CHECK(find_bottleneck(costs(0, 0.3, 0, 0.7, 0.1), on_gpu()).bound == Bound::exchange);
  const Bottleneck launches = find_bottleneck(costs(0.05, 0.9, 0, 0, 0.01), on_gpu());
  CHECK(launches.bound == Bound::host);
  CHECK(launches.launches);
  CHECK(advises(launches, "capture: true"));
  const Bottleneck callbacks = find_bottleneck(costs(0.05, 0.2, 0.7), on_gpu());
  CHECK(callbacks.bound == Bound::host);
  CHECK_FALSE(callbacks.launches);
  CHECK_FALSE(advises(callbacks, "capture"));
  CHECK(find_bottleneck(costs(0.8, 0.2), on_gpu()).bound == Bound::data);
  RunTraits captured = on_gpu();
  captured.captures = true;
  CHECK_FALSE(advises(find_bottleneck(costs(0.05, 0.9), captured), "capture"));
  // A strategy that splits batches, a device without graphs.
  RunTraits eager = on_gpu();
  eager.can_capture = false;
  CHECK(find_bottleneck(costs(0.05, 0.9), eager).launches);
  CHECK_FALSE(advises(find_bottleneck(costs(0.05, 0.9), eager), "capture"));
}

TEST_CASE("nothing is said of a run without a measured step") {
  const Bottleneck found = find_bottleneck({}, {});
  CHECK(found.bound == Bound::nothing);
  CHECK(found.advice.empty());
  CHECK_THAT(bottleneck_text(found, {}, {}), ContainsSubstring("no step was measured"));
}

TEST_CASE("advice on data follows the number of workers") {
  const auto advice = [](std::optional<int64_t> workers) {
    RunTraits run;
    run.num_workers = workers;
    run.cores = 4;
    return find_bottleneck(costs(0.7, 0.3), run).advice.front();
  };
  CHECK(advice(0).yaml == "data: {init_args: {num_workers: auto}}");
  CHECK_THAT(advice(0).reason, ContainsSubstring("waits 7.00 ms"));
  CHECK(advice(std::nullopt).yaml == "data: {init_args: {num_workers: auto}}");
  CHECK(advice(1).yaml == "data: {init_args: {num_workers: 2}}");
  CHECK(advice(3).yaml == "data: {init_args: {num_workers: 4}}");
  CHECK(advice(4).yaml == "data: {init_args: {prefetch_factor: 8}}");
  CHECK_FALSE(advises(find_bottleneck(costs(0.19, 0.81), {}), "num_workers"));
}

TEST_CASE("advice on the host names the slowest callback") {
  StepCosts slow = costs(0, 0.2, 0.5);
  slow.slowest_hook = "Sleepy.on_train_batch_end";
  slow.slowest_hook_s = 4e-3;
  const Bottleneck found = find_bottleneck(slow, {});
  CHECK(advises(found, "class_path: Sleepy, every: 10st"));
  CHECK(advises(found, "batch_size"));
  const Bottleneck quick = find_bottleneck(costs(0, 0.2), {});
  CHECK_FALSE(advises(quick, "class_path"));
}

TEST_CASE("advice on the device leaves out what is already set") {
  RunTraits run;
  run.threads = 1;
  run.cores = 8;
  CHECK_FALSE(advises(find_bottleneck(costs(0, 0.9), run), "memory_format"));  // nothing has channels
  run.has_images = true;
  const Bottleneck found = find_bottleneck(costs(0, 0.9), run);
  CHECK(advises(found, "num_threads: 8"));
  CHECK(advises(found, "precision: bf16-mixed"));
  CHECK(advises(found, "memory_format: channels_last"));
  CHECK_FALSE(advises(found, "float32_matmul_precision"));  // of GPUs
  CHECK(advises(find_bottleneck(costs(0, 0.5, 0, 0, 0.5), on_gpu()), "float32_matmul_precision: high"));
  run.threads = 8;
  run.precision = "bf16-mixed";
  run.channels_last = true;
  CHECK(find_bottleneck(costs(0, 0.9), run).advice.empty());
}

TEST_CASE("advice on the exchange follows the options of ddp") {
  RunTraits run;
  run.ranks = 2;
  run.accumulate_grad_batches = 2;
  run.finds_unused_parameters = true;
  const Bottleneck found = find_bottleneck(costs(0, 0.3, 0, 0.6), run);
  CHECK(advises(found, "accumulate_grad_batches: 8"));
  CHECK(advises(found, "compression: bf16"));
  CHECK(advises(found, "find_unused_parameters: false"));
  CHECK(advises(found, "bucket_cap_mb"));
  run.compresses_gradients = true;
  run.finds_unused_parameters = false;
  const Bottleneck less = find_bottleneck(costs(0, 0.3, 0, 0.6), run);
  CHECK_FALSE(advises(less, "compression"));
  CHECK_FALSE(advises(less, "find_unused"));
}

TEST_CASE("the text has the figures, the verdict and the advice") {
  const StepCosts slow = costs(0.7, 0.2);
  const std::string text = bottleneck_text(find_bottleneck(slow, {}), slow, {});
  CHECK_THAT(text,
             ContainsSubstring("profile of 20 training batches: 10.000 ms each, 6400.0 samples/s; the host is idle "
                               "70.0 % of the time\n"));
  CHECK_THAT(text, ContainsSubstring("bound by: data · data 70 %, host 10 %, device 20 %, exchange 0 %\n"));
  CHECK_THAT(text, ContainsSubstring("num_workers: auto"));
  CHECK_THAT(text, !ContainsSubstring("exchange: backward"));
  CHECK_THAT(text, !ContainsSubstring("loggers"));  // a profile has none
  RunTraits two;
  two.ranks = 2;
  CHECK_THAT(bottleneck_text(find_bottleneck(slow, two), slow, two), ContainsSubstring("exchange: backward waits"));
  const StepCosts short_kernels = costs(0, 0.9);
  CHECK_THAT(bottleneck_text(find_bottleneck(short_kernels, on_gpu()), short_kernels, on_gpu()),
             ContainsSubstring("bound by: host (launch-bound"));
}

TEST_CASE("the costs of a step are the means of what the profiler has measured, each part once") {
  const auto row = [](const char* action, double host_s, double own_s, std::optional<double> device_s = {}) {
    return SimpleProfiler::Row{.action = action, .calls = 4, .host_s = host_s, .own_s = own_s, .device_s = device_s};
  };
  const StepCosts found =
      step_costs({row("training_batch", 3.0, 0.1), row("next_batch", 0.4, 0.4), row("batch_to_device", 0.2, 0.2),
                  // Manual optimization: the step contains backward.
                  row("training_step", 1.6, 0.6), row("backward", 1.0, 1.0), row("gradient_exchange", 0.3, 0.3),
                  row("optimizer_step", 0.1, 0.1), row("wait_for_device", 0.8, 0.8),
                  row("Quick.on_train_batch_end", 0.1, 0.1), row("Slow.on_train_batch_end", 0.25, 0.25)},
                 4, 4.0);
  CHECK(found.steps == 4);
  CHECK(found.step_s == Approx(1.0));
  CHECK(found.data_s == Approx(0.1));
  CHECK(found.transfer_s == Approx(0.05));
  CHECK(found.compute_s == Approx((0.6 + 1.0 + 0.1 - 0.3) / 4));
  CHECK(found.exchange_s == Approx(0.075));
  CHECK(found.device_wait_s == Approx(0.2));
  CHECK(found.callbacks_s == Approx(0.35 / 4));
  CHECK(found.slowest_hook == "Slow.on_train_batch_end");
  CHECK(found.slowest_hook_s == Approx(0.0625));
  // On a GPU the exchange is what the device waits.
  CHECK(step_costs({row("gradient_exchange", 0.0, 0.0, 2.0)}, 4, 4.0).exchange_s == Approx(0.5));
  CHECK(step_costs({}, 0, 0).steps == 0);
}

}  // namespace bottleneck_test
