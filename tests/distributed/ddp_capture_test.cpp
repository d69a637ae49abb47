// ddp on the CPU with `capture`: the sums over Gloo are operations of the captured step.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "checkpoint_contents.h"
#include "ranks.h"

namespace ddp_capture_test {

using namespace fulgur::test;

namespace {

const Arguments kLength{"--trainer.max_steps", "40", "--data.num_train", "240"};

std::vector<Finished> fit(const TemporaryFolder& folder, int ranks, const std::string& captures,
                          const Arguments& more) {
  return run_ranks({.count = ranks, .folder = folder.path()},
                   probe("fit", ranks, 12,
                         Arguments{"--optimizer", "AdamW", "--optimizer.lr", "0.01"} + kLength + more +
                             Arguments{"--trainer.capture", captures, "--trainer.strategy.check_replicas_every", "1"}));
}

std::filesystem::path trained(const TemporaryFolder& folder, int ranks, const std::string& captures,
                              const Arguments& more) {
  const auto runs = fit(folder, ranks, captures, more);
  REQUIRE(all_exit(runs, 0));
  INFO(runs[0].err << runs[0].out);
  CHECK(says(runs[0].out + runs[0].err, "the step is captured") == (captures == "true"));
  CHECK_FALSE(says(runs[0].out + runs[0].err, "the steps are not captured"));
  return last_checkpoint(folder.path());
}

}  // namespace

TEST_CASE("ddp: captured steps on the CPU compute what eager ones do, bit for bit") {
  const int ranks = GENERATE(2, 3);
  const Arguments more =
      GENERATE(Arguments{}, Arguments{"--trainer.accumulate_grad_batches", "3"},
               Arguments{"--model.norm", "true", "--model.dropout", "0.2", "--trainer.gradient_clip_val", "0.5"},
               Arguments{"--trainer.precision", "bf16-mixed", "--trainer.log_grad_norm", "true"},
               Arguments{"--trainer.strategy.bucket_cap_mb", "0.0001", "--model.hidden", "40"},
               Arguments{"--trainer.on_nonfinite", "skip", "--model.norm", "true", "--model.trouble", "nan_between",
                         "--model.trouble_step", "13"},
               Arguments{"--trainer.on_nonfinite", "skip", "--model.norm", "true", "--model.trouble",
                         "nan_constant_between", "--model.trouble_step", "13"},
               // The last batch of an epoch is smaller.
               Arguments{"--data.num_train", "124", "--trainer.val_check_interval", "4", "--model.norm", "true"});
  CAPTURE(ranks, more);
  const TemporaryFolder eager, captured;
  CHECK(same_content(trained(eager, ranks, "false", more), trained(captured, ranks, "true", more)));
}

TEST_CASE("ddp: a captured run on the CPU that is interrupted continues to the bit") {
  const Arguments more{"--trainer.accumulate_grad_batches", "2", "--model.dropout", "0.2"};
  const TemporaryFolder eager, parts;
  const auto expected = trained(eager, 2, "false", more);
  trained(parts, 2, "true", more + Arguments{"--trainer.stop_after", "17st"});
  CHECK(same_content(expected, trained(parts, 2, "true", more + Arguments{"--resume"})));
}

TEST_CASE("ddp: steps on the CPU that one rank cannot capture have the bits of eager ones on all") {
  const std::string rank = GENERATE("0", "1");
  const auto [trouble, reason] =
      GENERATE(table<std::string, std::string>({{"reads_values", "aten::_local_scalar_dense"},
                                                {"reads_nan_values", "_local_scalar_dense"},
                                                {"hook_of_rank", "on_"}}));
  const Arguments more{"--model.norm",         "true", "--model.trouble",        trouble, "--model.trouble_rank", rank,
                       "--model.trouble_step", "13",   "--trainer.on_nonfinite", "skip"};
  CAPTURE(rank, trouble);
  const TemporaryFolder eager, captured;
  const auto expected = trained(eager, 2, "false", more);
  const auto runs = fit(captured, 2, "true", more);
  INFO(runs[0].err << runs[0].out);
  REQUIRE(all_exit(runs, 0));
  const std::string said = runs[0].out + runs[0].err;
  CHECK(says(said, "the step is captured") == (rank == "1"));
  CHECK(says(said, "the steps are not captured: ") == (rank == "0"));
  if (rank == "0") CHECK(says(said, reason));
  CHECK(same_content(expected, last_checkpoint(captured.path())));
}

TEST_CASE("ddp: on the CPU, a rank that is lost or fails between captured steps ends the run with its reason") {
  const auto [trouble, code] = GENERATE(table<std::string, int>({{"kill_between", 5}, {"stop_between", 5}}));
  const TemporaryFolder folder;
  const Finished run = trainer(probe("fit", 2, 12,
                                     kLength + Arguments{"--trainer.capture", "true", "--trainer.strategy.timeout_s",
                                                         "5", "--model.trouble", trouble, "--model.trouble_step", "9"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(says(run.out + run.err, "the step is captured"));
  CHECK(run.exit_code == code);
  CHECK(says(run.err, trouble == "kill_between" ? "rank 1 of 2 was ended by signal 9" : "did not answer"));
}

TEST_CASE("ddp: an option that keeps steps on the CPU from being captured is named, with what to set") {
  using Strings = std::vector<std::string>;
  const Strings tried =
      GENERATE(Strings{"--trainer.strategy.find_unused_parameters", "true", "ddp's find_unused_parameters is true",
                       "set it to false"},
               Strings{"--trainer.strategy.compression", "bf16", "ddp's compression is bf16", "set it to none"},
               Strings{"--trainer.on_nonfinite", "stop", "on_nonfinite is stop", "use raise, skip or off"});
  const TemporaryFolder folder;
  const Finished run = trainer(probe("fit", 2, 12,
                                     Arguments{"--trainer.max_steps", "8", "--trainer.capture", "true", tried[0],
                                               tried[1], "--report", "report.json"}),
                               {.folder = folder.path()});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, tried[2]));
  CHECK(says(run.err, tried[3]));
  CHECK(says(read_text(folder / "report.json"), "\"captured_batches\": 0"));
}

}  // namespace ddp_capture_test
