// Gradients over slow networks: PowerSGD, local SGD, DiLoCo and measured bucket sizes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "ranks.h"
#include "support/gpu.h"

namespace slow_networks_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

std::vector<Finished> fit(const fs::path& folder, int world, const Arguments& more) {
  return run_ranks({.count = world, .folder = folder}, probe("fit", world, 12, more));
}

fs::path trained(const TemporaryFolder& folder, int world, const Arguments& more) {
  REQUIRE(all_exit(fit(folder.path(), world, more), 0));
  return last_checkpoint(folder.path());
}

// The last value of a metric in the run's rows.
double last_value(const TemporaryFolder& folder, const std::string& metric) {
  const std::string rows = read_text(run_folder(folder.path()) / "metrics.jsonl");
  const std::string key = "\"" + metric + "\":";
  const size_t at = rows.rfind(key);
  REQUIRE(at != std::string::npos);
  return std::stod(rows.substr(at + key.size()));
}

const Arguments kSgd{"--optimizer", "SGD", "--optimizer.lr", "0.05", "--optimizer.momentum", "0.9"};
const Arguments kAdam{"--optimizer", "AdamW", "--optimizer.lr", "0.01"};
const Arguments kPower{"--model.hidden",
                       "32",
                       "--trainer.strategy.compression",
                       "powersgd",
                       "--trainer.strategy.powersgd.start_step",
                       "2",
                       "--trainer.strategy.powersgd.min_compression_rate",
                       "1",
                       "--trainer.strategy.check_replicas_every",
                       "1"};
const Arguments kEverySix{"--trainer.strategy.local_sgd.period", "6"};
const Arguments kDiloco{"--trainer.strategy.local_sgd.period", "6", "--trainer.strategy.local_sgd.outer_optimizer.lr",
                        "0.7"};

// A run that a signal ends after `cut_at` steps and that is resumed, beside one that nothing ends.
void check_resume(int world, const Arguments& options, const std::string& cut_at) {
  INFO(fulgur::join(options, " ") << ", cut after " << cut_at);
  const Arguments length{"--trainer.max_epochs", "3", "--data.num_train", "120"};
  const TemporaryFolder whole, parts;
  REQUIRE(all_exit(fit(whole.path(), world, options + length), 0));
  REQUIRE(
      all_exit(fit(parts.path(), world,
                   options + length +
                       Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                                 "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", cut_at}),
               75));
  REQUIRE(all_exit(fit(parts.path(), world, options + length + Arguments{"--resume"}), 0));
  CHECK(same_bits(last_checkpoint(whole.path()), last_checkpoint(parts.path())));
  CHECK(
      (read_text(run_folder(whole.path()) / "metrics.jsonl") == read_text(run_folder(parts.path()) / "metrics.jsonl")));
}

}  // namespace

TEST_CASE("powersgd: ranks agree, and the loss is close to that of whole gradients") {
  const int world = GENERATE(2, 3);
  const std::string rank = GENERATE("1", "2");
  const TemporaryFolder plain, compressed;
  const Arguments length = kSgd + Arguments{"--trainer.max_epochs", "10", "--data.num_train", "120"};
  const auto a = trained(plain, world, length + Arguments{"--model.hidden", "32"});
  const auto b = trained(compressed, world,
                         length + kPower + Arguments{"--trainer.strategy.powersgd.matrix_approximation_rank", rank});
  CHECK_FALSE(same_bits(a, b));
  const double expected = last_value(plain, "val_loss"), found = last_value(compressed, "val_loss");
  INFO("val_loss " << expected << ", with powersgd " << found);
  // The gradients of three classes have two directions.
  CHECK(found < expected * (rank == "1" ? 1.5 : 1.05));
}

TEST_CASE("powersgd: factors with all columns are the gradients") {
  const Arguments more =
      GENERATE(Arguments{}, Arguments{"--trainer.strategy.powersgd.warm_start", "false"},
               Arguments{"--trainer.accumulate_grad_batches", "2", "--trainer.gradient_clip_val", "0.1"},
               Arguments{"--trainer.precision", "bf16-mixed"});
  const Arguments length = kSgd + Arguments{"--trainer.max_steps", "30"};
  const TemporaryFolder plain, whole;
  Arguments of_plain = more + Arguments{"--model.hidden", "32"};
  if (more.size() == 2 && more[1] == "false") of_plain = {"--model.hidden", "32"};
  const auto expected = trained(plain, 3, length + of_plain);
  const auto found = trained(whole, 3,
                             length + kPower + more +
                                 Arguments{"--trainer.strategy.powersgd.matrix_approximation_rank", "64",
                                           "--trainer.strategy.powersgd.min_compression_rate", "0.001"});
  const bool rounds = more.size() == 2 && more[1] == "bf16-mixed";
  CHECK(difference(expected, found) < (rounds ? 1e-3 : 1e-6));
}

TEST_CASE("powersgd: a warm start begins with other factors than random ones") {
  const TemporaryFolder warm, cold;
  const Arguments length = kSgd + kPower + Arguments{"--trainer.max_steps", "12"};
  CHECK_FALSE(same_bits(trained(warm, 2, length),
                        trained(cold, 2, length + Arguments{"--trainer.strategy.powersgd.warm_start", "false"})));
}

TEST_CASE("powersgd: before its start, and without a matrix worth it, gradients are exchanged whole") {
  const TemporaryFolder plain, late, small;
  const Arguments length = kSgd + Arguments{"--trainer.max_steps", "20", "--model.hidden", "32"};
  const auto expected = trained(plain, 2, length);
  CHECK(difference(expected, trained(late, 2, length + Arguments{"--trainer.strategy.compression", "powersgd"})) <
        1e-6);
  CHECK(difference(expected, trained(small, 2,
                                     length + kPower +
                                         Arguments{"--trainer.strategy.powersgd.min_compression_rate", "1e6"})) < 1e-6);
}

TEST_CASE("powersgd: what a step loses is kept, also over a resume") {
  const Arguments more =
      GENERATE(Arguments{}, Arguments{"--trainer.accumulate_grad_batches", "2", "--model.norm", "true"},
               Arguments{"--trainer.strategy.powersgd.warm_start", "false"});
  check_resume(2, kAdam + kPower + more, GENERATE("1", "7"));
}

TEST_CASE("powersgd: error feedback is what makes it follow whole gradients") {
  const TemporaryFolder plain, with, without;
  const Arguments length{"--optimizer", "SGD", "--optimizer.lr", "0.05", "--trainer.max_steps", "40"};
  const auto expected = trained(plain, 2, length + Arguments{"--model.hidden", "32"});
  const double kept = difference(expected, trained(with, 2, length + kPower));
  const double lost = difference(
      expected,
      trained(without, 2, length + kPower + Arguments{"--trainer.strategy.powersgd.use_error_feedback", "false"}));
  INFO("differs by " << kept << " with, and by " << lost << " without");
  CHECK(kept < lost);
}

TEST_CASE("powersgd: unused parameters, frozen ones, and gradients that are not finite") {
  const TemporaryFolder named, found, skipped, micro;
  const Arguments length = kSgd + Arguments{"--trainer.max_steps", "12"};
  const auto runs = fit(named.path(), 2, length + kPower + Arguments{"--model.spare", "true"});
  CHECK(all_exit(runs, 5));
  for (const Finished& run : runs) CHECK(says(run.err, "these got none: spare"));
  trained(found, 2,
          length + kPower + Arguments{"--model.spare", "true", "--trainer.strategy.find_unused_parameters", "true"});
  const auto after = trained(skipped, 2,
                             length + kPower +
                                 Arguments{"--trainer.on_nonfinite", "skip", "--model.trouble", "nan",
                                           "--model.trouble_rank", "1", "--trainer.check_every", "1"});
  for (const auto& [name, value] : fulgur::read_safetensors(after / "model.safetensors").tensors) {
    INFO(name);
    CHECK(value.isfinite().all().item<bool>());
  }
  trained(micro, 2, length + kPower + Arguments{"--trainer.auto_micro_batch", "true"});
}

TEST_CASE(
    "local sgd: an average after each step is the average of gradients, for an optimizer that is linear in them") {
  const std::string size = GENERATE("1", "2");
  const Arguments more = GENERATE(Arguments{}, Arguments{"--trainer.accumulate_grad_batches", "2"});
  const Arguments length = kSgd + more + Arguments{"--trainer.max_steps", "20"};
  const TemporaryFolder plain, local;
  const auto expected = trained(plain, 4, length);
  const auto found =
      trained(local, 4,
              length + Arguments{"--trainer.strategy.local_sgd.period", "1", "--trainer.strategy.local_sgd.group_size",
                                 size, "--trainer.strategy.check_replicas_every", "1"});
  CHECK(difference(expected, found) < 1e-6);
}

TEST_CASE("local sgd: groups average their gradients in each step, and all their weights at its end") {
  // Groups of two of four ranks, whose weights meet at the end, are two runs of two ranks only if nothing meets before.
  const Arguments length = kSgd + Arguments{"--trainer.max_steps", "7"};
  const TemporaryFolder alone, groups;
  const auto own = trained(alone, 4, length + Arguments{"--trainer.strategy.local_sgd.period", "100"});
  const auto pairs = trained(
      groups, 4,
      length + Arguments{"--trainer.strategy.local_sgd.period", "100", "--trainer.strategy.local_sgd.group_size", "2"});
  CHECK(difference(own, pairs) > 1e-6);
}

TEST_CASE("local sgd: until it starts, ranks average their gradients") {
  const TemporaryFolder plain, post;
  const Arguments length = kAdam + Arguments{"--trainer.max_steps", "20"};
  CHECK(same_bits(trained(plain, 2, length),
                  trained(post, 2, length + kEverySix + Arguments{"--trainer.strategy.local_sgd.start_step", "20"})));
  const TemporaryFolder begun;
  CHECK_FALSE(
      same_bits(last_checkpoint(plain.path()),
                trained(begun, 2, length + kEverySix + Arguments{"--trainer.strategy.local_sgd.start_step", "10"})));
}

TEST_CASE("local sgd: the outer optimizer is SGD over the change of the average") {
  // With a period of one step and plain SGD inside, DiLoCo is SGD with the product of both rates.
  const Arguments length{"--trainer.max_steps", "20", "--optimizer", "SGD"};
  const std::string nesterov = GENERATE("true", "false");
  const TemporaryFolder plain, outer;
  const auto expected = trained(
      plain, 2,
      length + Arguments{"--optimizer.lr", "0.035", "--optimizer.momentum", "0.9", "--optimizer.nesterov", nesterov});
  const auto found = trained(outer, 2,
                             length + Arguments{"--optimizer.lr", "0.05", "--trainer.strategy.local_sgd.period", "1",
                                                "--trainer.strategy.local_sgd.outer_optimizer.lr", "0.7",
                                                "--trainer.strategy.local_sgd.outer_optimizer.momentum", "0.9",
                                                "--trainer.strategy.local_sgd.outer_optimizer.nesterov", nesterov});
  CHECK(difference(expected, found) < 1e-5);
}

TEST_CASE("local sgd: a resume continues with each rank's weights and states") {
  const Arguments more = GENERATE(kEverySix, kDiloco, kEverySix + Arguments{"--trainer.accumulate_grad_batches", "2"},
                                  kEverySix + Arguments{"--trainer.strategy.local_sgd.start_step", "5"});
  check_resume(2, kAdam + more + Arguments{"--model.norm", "true", "--model.dropout", "0.2"}, GENERATE("4", "6", "9"));
}

TEST_CASE("local sgd: evaluations and checkpoints between two averages change nothing, and see the average") {
  const Arguments period = GENERATE(kEverySix, kDiloco);
  const Arguments length = kAdam + period + Arguments{"--data.num_train", "240", "--trainer.max_epochs", "1"};
  const TemporaryFolder quiet, watched;
  const auto expected = trained(quiet, 2, length);
  const auto found =
      trained(watched, 2,
              length + Arguments{"--trainer.val_check_interval", "4", "--trainer.callbacks+=ModelCheckpoint",
                                 "--trainer.callbacks.every_n_train_steps", "5", "--trainer.callbacks.save_top_k", "-1",
                                 "--trainer.callbacks+=WeightAveraging"});
  CHECK(same_bits(expected, found));
  // The checkpoint of step 5 has the average of the ranks' weights.
  const TemporaryFolder five;
  const auto ended = trained(five, 2, length + Arguments{"--trainer.max_steps", "5"});
  std::optional<fs::path> middle;
  for (const auto& entry : fs::directory_iterator(run_folder(watched.path()) / "checkpoints"))
    if (entry.path().filename().string().find("step=5") != std::string::npos) middle = entry.path();
  REQUIRE(middle);
  CHECK(same_bits(ended, *middle));
}

TEST_CASE("local sgd: an evaluation inside a window that then ends early changes nothing") {
  // A stream ends, or the rest of an epoch is skipped, while a window is open.
  const Arguments more = GENERATE(Arguments{"--data.stream", "[60, 60]"},
                                  Arguments{"--model.trouble", "skip_epoch", "--model.trouble_step", "10"});
  const Arguments length =
      kAdam + kEverySix + more + Arguments{"--data.num_train",     "240", "--trainer.accumulate_grad_batches", "4",
                                           "--trainer.max_epochs", "3",   "--trainer.check_val_every_n_epoch", "null"};
  const TemporaryFolder quiet, watched;
  CHECK(same_bits(trained(quiet, 2, length + Arguments{"--trainer.val_check_interval", "1000"}),
                  trained(watched, 2, length + Arguments{"--trainer.val_check_interval", "10"})));
}

TEST_CASE("local sgd: weights that hooks write after an evaluation are those of the rank") {
  const Arguments length = kAdam + kEverySix +
                           Arguments{"--data.num_train",
                                     "240",
                                     "--trainer.max_epochs",
                                     "2",
                                     "--model.trouble",
                                     "flip_between",
                                     "--model.trouble_step",
                                     "4",
                                     "--trainer.strategy.check_replicas_every",
                                     "-1"};
  const TemporaryFolder quiet, watched;
  CHECK(same_bits(trained(quiet, 2, length),
                  trained(watched, 2, length + Arguments{"--trainer.val_check_interval", "4"})));
}

TEST_CASE("local sgd: frozen parameters are left as they are") {
  const TemporaryFolder folder;
  const Arguments length = kAdam + Arguments{"--trainer.max_steps", "12", "--trainer.callbacks+=Finetuning",
                                             "--trainer.callbacks.freeze", "[\"first*\"]"};
  const auto a = fulgur::read_safetensors(trained(folder, 3, length) / "model.safetensors").tensors;
  const TemporaryFolder local;
  const auto b =
      fulgur::read_safetensors(trained(local, 3, length + Arguments{"--trainer.strategy.local_sgd.period", "1"}) /
                               "model.safetensors")
          .tensors;
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].first.starts_with("first")) CHECK(a[i].second.equal(b[i].second));
}

TEST_CASE("local sgd: a resume that changes the outer optimizer in the middle of a period keeps ranks together") {
  const TemporaryFolder parts;
  const Arguments options =
      kAdam + Arguments{"--data.num_train", "240", "--trainer.strategy.check_replicas_every", "1"};
  const auto [before, after] =
      GENERATE(std::pair{kEverySix, kDiloco}, std::pair{kDiloco, kEverySix}, std::pair{kDiloco, Arguments{}},
               std::pair{Arguments{}, kDiloco},
               std::pair{kDiloco, kDiloco + Arguments{"--trainer.strategy.local_sgd.start_step", "9"}});
  REQUIRE(all_exit(fit(parts.path(), 2, options + before + Arguments{"--trainer.max_steps", "4"}), 0));
  CHECK(all_exit(fit(parts.path(), 2,
                     options + after + Arguments{"--trainer.max_steps", "18", "--resume", "--allow-config-change"}),
                 0));
}

TEST_CASE("local sgd: a run continues from the average with another number of ranks") {
  const TemporaryFolder parts, of_power;
  const Arguments options = kAdam + kDiloco + Arguments{"--data.num_train", "240"};
  REQUIRE(all_exit(fit(parts.path(), 4, options + Arguments{"--trainer.max_steps", "8"}), 0));
  REQUIRE(all_exit(
      fit(parts.path(), 2, options + Arguments{"--trainer.max_steps", "14", "--resume", "--allow-config-change"}), 0));
  REQUIRE(all_exit(fit(of_power.path(), 4, kAdam + kPower + Arguments{"--trainer.max_steps", "8"}), 0));
  const auto resumed = fit(
      of_power.path(), 2, kAdam + kPower + Arguments{"--trainer.max_steps", "14", "--resume", "--allow-config-change"});
  REQUIRE(all_exit(resumed, 0));
  CHECK(says(resumed[0].err, "begins without the errors and factors"));
}

TEST_CASE("local sgd: a resume that adds it makes the first average after a whole period") {
  const TemporaryFolder parts;
  const Arguments options = kAdam + Arguments{"--data.num_train", "240"};
  REQUIRE(all_exit(fit(parts.path(), 2, options + Arguments{"--trainer.max_steps", "8"}), 0));
  REQUIRE(all_exit(fit(parts.path(), 2,
                       options + kDiloco + Arguments{"--trainer.max_steps", "9", "--resume", "--allow-config-change"}),
                   0));
  CHECK_FALSE(says(read_text(last_checkpoint(parts.path()) / "state.json"), "momentum."));
}

TEST_CASE("slow networks: on two GPUs the ranks compute what they do on CPUs, over NCCL", "[gpu]") {
  require_gpus(2);
  const Arguments options = GENERATE(kPower, kEverySix, kDiloco, Arguments{"--trainer.strategy.bucket_cap_mb", "auto"});
  const Arguments length =
      kSgd + options +
      Arguments{"--data.num_train", "240", "--trainer.max_epochs", "1", "--trainer.val_check_interval", "4"};
  const TemporaryFolder cpu, gpu, parts;
  const auto expected = trained(cpu, 2, length);
  const Arguments on_gpus = length + Arguments{"--trainer.accelerator", "cuda"};
  const auto found = trained(gpu, 2, on_gpus);
  CHECK(difference(expected, found) < 1e-4);
  REQUIRE(all_exit(fit(parts.path(), 2, on_gpus + Arguments{"--trainer.max_steps", "9"}), 0));
  REQUIRE(all_exit(fit(parts.path(), 2, on_gpus + Arguments{"--resume", "--allow-config-change"}), 0));
  CHECK(same_bits(found, last_checkpoint(parts.path())));
}

TEST_CASE("slow networks: what does not work together is refused") {
  const TemporaryFolder folder;
  const auto refused = [&](const Arguments& options, const std::string& text, int code = 2,
                           const Arguments& optimizer = kSgd) {
    const auto runs = fit(folder.path(), 2, optimizer + Arguments{"--trainer.max_steps", "2"} + options);
    INFO(fulgur::join(options, " "));
    CHECK(all_exit(runs, code));
    INFO(runs[0].err);
    CHECK(says(runs[0].err, text));
  };
  refused(kPower + Arguments{"--trainer.precision", "16-mixed"}, "Use bf16-mixed or 32-true");
  refused(kEverySix + Arguments{"--trainer.precision", "bf16-true"}, "Use bf16-mixed or 32-true");
  refused(kPower + kEverySix, "do not work together");
  refused(kEverySix + Arguments{"--trainer.strategy.compression", "bf16"}, "compression has no effect with local_sgd");
  refused({"--trainer.strategy.local_sgd", "4"}, "write {KEY: VALUE}; the keys are period, start_step, group_size");
  refused(kPower + Arguments{"--trainer.strategy.static_graph", "true"}, "static_graph has no effect");
  refused({"--trainer.strategy.powersgd.start_step", "3"}, "powersgd has no effect without compression: powersgd");
  refused(kEverySix + Arguments{"--trainer.on_nonfinite", "skip"}, "Use on_nonfinite: raise or off");
  refused(kEverySix + Arguments{"--trainer.strategy.local_sgd.group_size", "2"}, "none trains alone");
  refused(kEverySix, "Use another optimizer", 2, {"--optimizer", "LBFGS"});
  refused({"--trainer.strategy.local_sgd.start_step", "2"}, "period");
  for (const Arguments& options : {kPower, kEverySix}) {
    Arguments arguments = probe("fit", 2, 12, options + Arguments{"--trainer.strategy.sharding", "gradients"});
    *std::ranges::find(arguments, "ddp") = "fsdp";
    const auto runs = run_ranks({.count = 2, .folder = folder.path()}, arguments);
    CHECK(all_exit(runs, 2));
    CHECK(says(runs[0].err, "Use strategy: ddp"));
  }
}

TEST_CASE("slow networks: what does nothing is said") {
  const TemporaryFolder factored, whole, alone, averaged;
  const Arguments length = kSgd + Arguments{"--trainer.max_steps", "2"};
  const auto some = fit(factored.path(), 2, length + kPower);
  CHECK(all_exit(some, 0));
  INFO(some[0].err);
  CHECK(says(some[0].err, "powersgd: from step 2 on, a step sends 2 of 4 parameters as factors of rank 1, "));
  const auto none =
      fit(whole.path(), 2, length + kPower + Arguments{"--trainer.strategy.powersgd.matrix_approximation_rank", "500"});
  CHECK(all_exit(none, 0));
  CHECK(says(none[0].err, "[strategies.nothing_to_compress]"));
  const auto local = fit(averaged.path(), 2, length + kEverySix);
  CHECK(says(local[0].err, "local_sgd: from step 0 on, ranks average their weights, 0.0 MB, every 6 steps"));
  const Finished one = trainer(probe("fit", 1, 12, length + Arguments{"--trainer.strategy", "ddp"} + kEverySix),
                               {.folder = alone.path()});
  INFO(one.err);
  CHECK(one.exit_code == 0);
  CHECK(says(one.err, "[strategies.one_process]"));
}

TEST_CASE("ddp: bucket_cap_mb: auto is measured, shown, and kept by a resume") {
  const TemporaryFolder folder;
  const Arguments options = kSgd + Arguments{"--trainer.strategy.bucket_cap_mb", "auto"};
  const auto runs = fit(folder.path(), 2, options + Arguments{"--trainer.max_steps", "4"});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "ddp: bucket_cap_mb is "));
  const auto resumed = fit(folder.path(), 2, options + Arguments{"--trainer.max_steps", "8", "--resume"});
  REQUIRE(all_exit(resumed, 0));
  CHECK_FALSE(says(resumed[0].err, "ddp: bucket_cap_mb is "));
}

}  // namespace slow_networks_test
