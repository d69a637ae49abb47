// dp, model_parallel and hybrid on GPUs, against one GPU.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "support/gpu.h"
#include "trainer/loops/second_device.h"
#include "virtual_devices/paired.h"

namespace several_gpus_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

TrainerOptions on_gpus(TrainerOptions options, int devices) {
  options.accelerator = "cuda";
  options.devices = devices;
  options.max_epochs = 4;
  options.gradient_clip_val = 0.5;
  return options;
}

}  // namespace

TEST_CASE("on a GPU, a module placed on it trains as on one device, with micro-batches", "[gpu]") {
  require_gpus(1);
  const int64_t micro_batches = GENERATE(1, 3);
  const TemporaryFolder folder;
  const auto data = [] { return regression_data(13 * 24 + 3, 20, 13); };
  const auto one = train<Pair>(on_gpus(quiet(folder), 1), {}, data());
  const auto many = train<Pair>(on_gpus(placed(folder, "model_parallel", 1,
                                               "{placement: {encoder: cuda:0, decoder: cuda:0}, micro_batches: " +
                                                   std::to_string(micro_batches) + "}"),
                                        1),
                                {}, data());
  CHECK(many.report.global_step == 100);
  CHECK(largest_difference(one.weights, many.weights) < 1e-6);
}

TEST_CASE("on GPUs, dp, model_parallel and hybrid on several equal one", "[gpu]") {
  const int count = static_cast<int>(std::min<int64_t>(require_gpus(2).device_count(), 8)) / 2 * 2;
  const TemporaryFolder folder;
  const auto data = [] { return regression_data(13 * 24 + 3, 20, 13); };
  const auto one = train<Pair>(on_gpus(quiet(folder), 1), {}, data());
  TrainerOptions dp = on_gpus(quiet(folder), count);
  dp.strategy = Spec<Strategy>("dp");
  const std::string last = std::to_string(count - 1), half = std::to_string(count / 2),
                    before = std::to_string(count / 2 - 1);
  const TrainerOptions several[] = {
      dp,
      on_gpus(
          placed(folder, "model_parallel", count, "{placement: {encoder: 0, decoder: " + last + "}, micro_batches: 4}"),
          count),
      on_gpus(placed(folder, "hybrid", count,
                     "{placement: {encoder: [0.." + before + "], decoder: [" + half + ".." + last +
                         "]}, micro_batches: 2}"),
              count)};
  for (const TrainerOptions& options : several)
    CHECK(largest_difference(one.weights, train<Pair>(options, {}, data()).weights) < 1e-5);
}

// The gradients and the weights of both devices are each copied as one list.
TEST_CASE("on two GPUs, model_parallel in bf16-true with master weights equals one GPU", "[gpu]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const auto weights_of = [](TrainerOptions options, int devices) {
    options = on_gpus(std::move(options), devices);
    options.gradient_clip_val.reset();  // the norm over two devices is added up in another order
    Problems problems;
    options.precision.read(parse_yaml("{class_path: bf16-true, init_args: {master_weights: true}}", "test", problems),
                           problems, "trainer.precision");
    problems.throw_if_any();
    return train<Pair>(options, {}, regression_data(13 * 24 + 3, 20, 13)).weights;
  };
  const auto one = weights_of(quiet(folder), 1),
             two = weights_of(
                 placed(folder, "model_parallel", 2, "{placement: {encoder: 0, decoder: 1}, micro_batches: 1}"), 2);
  CHECK(largest_difference(one, two) == 0);
}

TEST_CASE("on two GPUs, a device without an index is cuda:1 in a run on cuda:1", "[gpu]") {
  require_gpus(2);
  check_second_device("cuda", at::kCUDA);
}

}  // namespace several_gpus_test
