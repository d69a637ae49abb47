// fsdp with `capture`: the gathers and sums of divided tensors are recorded with the step.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "checkpoint_contents.h"
#include "ranks.h"
#include "support/gpu.h"

namespace fsdp_capture_test {

using namespace fulgur::test;

namespace {

const Arguments kUnits{"--trainer.strategy.units", "[first, last]"};
const Arguments kMasters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true"};

struct Plan {
  std::string sharding;
  Arguments more = {};
  std::string optimizer = "AdamW";
};

Finished fit(const TemporaryFolder& folder, const Plan& plan, const std::string& captures, int ranks,
             const Arguments& more = {}) {
  Arguments all = probe("fit", ranks, 12,
                        // A rate that float32 represents exactly.
                        Arguments{"--optimizer", plan.optimizer, "--optimizer.lr", "0.0078125"} + plan.more + more +
                            Arguments{"--trainer.accelerator", "cuda", "--trainer.devices", std::to_string(ranks),
                                      "--trainer.capture", captures, "--trainer.strategy.check_replicas_every", "7"});
  // The strategy comes before its options; `probe` names none for one process.
  const std::string strategy = plan.sharding == "mesh" ? "mesh" : "fsdp";
  if (ranks > 1)
    *std::ranges::find(all, "ddp") = strategy;
  else
    all.insert(all.begin() + 1, {"--trainer.strategy", strategy});
  if (plan.sharding != "mesh") all.insert(all.end(), {"--trainer.strategy.sharding", plan.sharding});
  return trainer(all, {.folder = folder.path()});
}

std::filesystem::path trained(const TemporaryFolder& folder, const Plan& plan, const std::string& captures, int ranks,
                              const Arguments& more) {
  const Finished run = fit(folder, plan, captures, ranks, more);
  INFO(run.err << run.out);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.out + run.err, "the step is captured") == (captures == "true"));
  CHECK_FALSE(says(run.out + run.err, "not captured"));
  return last_checkpoint(folder.path());
}

const Arguments kLength{"--trainer.max_steps", "40", "--data.num_train", "240"};

}  // namespace

TEST_CASE("fsdp: on two GPUs, captured steps compute what eager ones do, bit for bit", "[gpu]") {
  require_gpus(2);
  const Plan plan = GENERATE(
      Plan{"optimizer"}, Plan{"optimizer", {"--trainer.precision", "16-mixed", "--trainer.gradient_clip_val", "0.5"}},
      Plan{"optimizer", kMasters}, Plan{"optimizer", {"--trainer.accumulate_grad_batches", "3"}, "SGD"},
      Plan{"gradients", kUnits}, Plan{"gradients", kUnits + Arguments{"--trainer.accumulate_grad_batches", "2"}},
      Plan{"gradients", {"--model.norm", "true", "--trainer.strategy.reduce_dtype", "bfloat16"}},
      Plan{"gradients", kUnits + Arguments{"--trainer.gradient_clip_val", "0.1", "--trainer.log_grad_norm", "true"}},
      Plan{"parameters", kUnits}, Plan{"parameters", {"--model.dropout", "0.2", "--trainer.precision", "bf16-mixed"}},
      Plan{"parameters", kUnits + Arguments{"--trainer.accumulate_grad_batches", "3"}},
      Plan{"parameters", kUnits + kMasters, "Lion"},
      Plan{"parameters", kUnits + Arguments{"--trainer.precision", "16-mixed", "--model.norm", "true"}},
      Plan{"parameters", kUnits + Arguments{"--trainer.on_nonfinite", "skip", "--model.trouble", "nan_between",
                                            "--model.trouble_step", "13"}},
      Plan{"parameters",
           kUnits + Arguments{"--trainer.val_check_interval", "6", "--trainer.callbacks", "[WeightAveraging]"}},
      Plan{"parameters", kUnits + Arguments{"--model.trouble", "write_whole", "--model.trouble_step", "0"}},
      Plan{"parameters", kUnits + Arguments{"--model.trouble", "swap_data"}},
      Plan{"mesh", kUnits + Arguments{"--trainer.strategy.mesh.shard", "2"}},
      Plan{"mesh", {"--trainer.strategy.mesh.data", "2"}});
  CAPTURE(plan.sharding, plan.more);
  const TemporaryFolder eager, captured;
  CHECK(same_content(trained(eager, plan, "false", 2, kLength), trained(captured, plan, "true", 2, kLength)));
}

TEST_CASE("fsdp: on four GPUs, captured steps with copies of the parts compute what eager ones do", "[gpu]") {
  require_gpus(4);
  const Plan plan = GENERATE(
      Plan{"hybrid", kUnits + Arguments{"--trainer.strategy.shard_size", "2"}},
      Plan{"mesh", kUnits + Arguments{"--trainer.strategy.mesh.data", "2", "--trainer.strategy.mesh.shard", "2"}});
  const TemporaryFolder eager, captured;
  CHECK(same_content(trained(eager, plan, "false", 4, kLength), trained(captured, plan, "true", 4, kLength)));
}

TEST_CASE("fsdp: on two GPUs, a captured run that is interrupted continues to the bit", "[gpu]") {
  require_gpus(2);
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters");
  const Plan plan{sharding, kUnits + Arguments{"--trainer.accumulate_grad_batches", "2", "--model.dropout", "0.2",
                                               "--trainer.strategy.state_dict_type", "sharded"}};
  const TemporaryFolder eager, parts;
  const auto expected = trained(eager, plan, "false", 2, kLength);
  trained(parts, plan, "true", 2, kLength + Arguments{"--trainer.stop_after", "17st"});
  CHECK(same_content(expected, trained(parts, plan, "true", 2, kLength + Arguments{"--resume"})));
}

TEST_CASE("fsdp: on two GPUs, a step that one rank cannot capture leaves the weights as eager steps do", "[gpu]") {
  require_gpus(2);
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters");
  const bool is_first = GENERATE(false, true);
  const Plan plan{sharding,
                  kUnits + Arguments{"--model.trouble", "reads_values", "--model.trouble_rank", is_first ? "0" : "1"}};
  const TemporaryFolder eager, captured;
  const auto expected = trained(eager, plan, "false", 2, kLength);
  const Finished run = fit(captured, plan, "true", 2, kLength);
  INFO(run.err << run.out);
  REQUIRE(run.exit_code == 0);
  // Rank 0 reports what it does itself. The orders of gathers of both ranks are compared, too.
  CHECK(says(run.out + run.err, "the step is captured") == !is_first);
  CHECK(says(run.out + run.err, "the steps are not captured") == is_first);
  CHECK(same_content(expected, last_checkpoint(captured.path())));
}

TEST_CASE("fsdp: on two GPUs, a recording that fails while parameters are whole leaves the weights as eager steps do",
          "[gpu]") {
  require_gpus(2);
  const Plan plan{"parameters", kUnits + Arguments{"--model.trouble", "read_values_of_whole"}};
  const TemporaryFolder eager, captured;
  const auto expected = trained(eager, plan, "false", 2, kLength);
  const Finished run = fit(captured, plan, "true", 2, kLength);
  INFO(run.err << run.out);
  REQUIRE(run.exit_code == 0);
  CHECK(says(run.out + run.err, "the steps are not captured: at aten::item"));
  CHECK_FALSE(says(run.err, "cannot be divided again"));
  CHECK(same_content(expected, last_checkpoint(captured.path())));
}

TEST_CASE("fsdp: on a GPU, steps without a loss leave captured weights as eager steps do", "[gpu]") {
  require_gpus(1);
  const Arguments units = GENERATE(Arguments{}, kUnits);
  const std::string trouble = GENERATE("no_loss_every_fourth", "no_loss_once");
  const Plan plan{"parameters", units + Arguments{"--trainer.strategy.process_group_backend", "nccl", "--model.trouble",
                                                  trouble, "--model.trouble_step", "2"}};
  CAPTURE(units, trouble);
  const TemporaryFolder eager, captured;
  const auto expected = trained(eager, plan, "false", 1, kLength);
  const Finished run = fit(captured, plan, "true", 1, kLength);
  INFO(run.err << run.out);
  REQUIRE(run.exit_code == 0);
  // The fourth step is the first that would be recorded.
  CHECK(says(run.out + run.err, "the steps are not captured: training_step returned no loss") ==
        (trouble == "no_loss_every_fourth"));
  CHECK(says(run.out + run.err, "the step is captured") == (trouble == "no_loss_once"));
  CHECK(same_content(expected, last_checkpoint(captured.path())));
}

TEST_CASE("fsdp: on two GPUs, a rank that is killed or stopped between captured steps ends both in time",
          "[gpu][ends]") {
  require_gpus(2);
  const std::string sharding = GENERATE("gradients", "parameters");
  const std::string trouble = GENERATE("kill", "stop");
  CAPTURE(sharding, trouble);
  const TemporaryFolder folder;
  const Finished run = fit(folder, {sharding, kUnits}, "true", 2,
                           kLength + Arguments{"--trainer.strategy.timeout_s", "10", "--model.trouble",
                                               trouble + "_between", "--model.trouble_step", "9"});
  INFO(run.err);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, trouble == "kill" ? "rank 1 of 2 was ended by signal 9" : "did not answer"));
}

TEST_CASE("fsdp: on two GPUs, what keeps steps from being captured is named, with what to set", "[gpu]") {
  require_gpus(2);
  const auto [plan, reason, advice] = GENERATE(table<Plan, std::string, std::string>(
      {{Plan{"optimizer", {"--trainer.strategy.offload", "optimizer"}}, "fsdp's offload is optimizer",
        "set it to none"},
       {Plan{"parameters", {"--model.trouble", "copies_values", "--model.trouble_rank", "0"}},
        "Cannot copy between CPU and CUDA tensors. The step synchronizes", "keep values on the device"},
       {Plan{"gradients", {"--trainer.strategy.find_unused_parameters", "true"}},
        "fsdp's find_unused_parameters is true", "set it to false"},
       {Plan{"mesh",
             {"--trainer.strategy.mesh.tensor", "2", "--trainer.strategy.tensor_plan", "{first: column, last: row}"}},
        "mesh divides layers among ranks along tensor or pipeline", "use data and shard alone"}}));
  const TemporaryFolder folder;
  const Finished run = fit(folder, plan, "true", 2, {"--trainer.max_steps", "8", "--report", "report.json"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "the steps are not captured: "));
  CHECK(says(run.err, reason));
  CHECK(says(run.err, advice));
  CHECK_FALSE(says(run.err, "pin_memory"));
  CHECK(says(read_text(folder / "report.json"), "\"captured_batches\": 0"));
}

}  // namespace fsdp_capture_test
