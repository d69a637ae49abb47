// fsdp: what ddp computes, with the optimizers' states, and gradients, divided among the ranks.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include "checkpoint_contents.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "peak_memory.h"
#include "ranks.h"
#include "support/combinations.h"
#include "support/gpu.h"

namespace fsdp_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

// The arguments of `probe` with another strategy (ddp, or mesh with shard alone), or with a sharding of fsdp. The
// optimizer's name in `more` resets its options, so it comes first.
std::vector<Finished> fit(const fs::path& folder, int world, const std::string& strategy, const Arguments& more) {
  if (world == 1) return {trainer(probe("fit", 1, 12, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
  Arguments arguments = probe("fit", world, 12, more + Arguments{"--trainer.strategy.check_replicas_every", "1"});
  if (strategy == "mesh") {
    *std::ranges::find(arguments, "ddp") = "mesh";
    arguments.insert(arguments.end(), {"--trainer.strategy.mesh.shard", std::to_string(world)});
  } else if (strategy != "ddp") {
    *std::ranges::find(arguments, "ddp") = "fsdp";
    arguments.insert(arguments.end(), {"--trainer.strategy.sharding", strategy});
  }
  return run_ranks({.count = world, .folder = folder}, arguments);
}

fs::path trained(const TemporaryFolder& folder, int world, const std::string& strategy, const Arguments& more) {
  REQUIRE(all_exit(fit(folder.path(), world, strategy, more), 0));
  return last_checkpoint(folder.path());
}

// The bits of weights and of the optimizers' states.
bool same_checkpoints(const fs::path& a, const fs::path& b) {
  if (!same_bits(a, b)) return false;
  const auto first = fulgur::read_safetensors(a / "optimizer.safetensors").tensors,
             second = fulgur::read_safetensors(b / "optimizer.safetensors").tensors;
  return std::ranges::equal(first, second, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.sizes() == y.second.sizes() && x.second.equal(y.second);
  });
}

const Arguments kAdam{"--optimizer", "AdamW", "--optimizer.lr", "0.01"};
const Arguments kMasters{"--trainer.precision", "bf16-true", "--trainer.precision.master_weights", "true"};

struct OnRanks {
  int world;
  Arguments more;
};

}  // namespace

TEST_CASE("fsdp: the ranks compute what those of ddp do, in weights and states") {
  const auto [world, more] = GENERATE(from_range(combinations<int, Arguments>(
      {2, 3}, {{"--optimizer", "AdamW", "--optimizer.lr", "0.01", "--trainer.gradient_clip_val", "0.5"},
               {"--optimizer", "Adam", "--optimizer.lr", "0.01", "--trainer.accumulate_grad_batches", "3",
                "--trainer.strategy.units", "[first]"},
               {"--optimizer", "SGD", "--optimizer.lr", "0.05", "--optimizer.momentum", "0.9", "--model.norm", "true"},
               {"--optimizer", "RMSprop", "--optimizer.lr", "0.01", "--trainer.precision", "bf16-mixed"},
               {"--optimizer", "Adagrad", "--optimizer.lr", "0.01", "--trainer.precision", "64-true"},
               {"--optimizer", "Lion", "--optimizer.lr", "0.001", "--model.dropout", "0.2"}})));
  Arguments of_ddp = more;
  if (const auto units = std::ranges::find(of_ddp, "--trainer.strategy.units"); units != of_ddp.end())
    of_ddp.erase(units, units + 2);
  const TemporaryFolder ddp, sharded;
  const Arguments length{"--trainer.max_steps", "30"};
  CHECK(same_checkpoints(trained(ddp, world, "ddp", of_ddp + length),
                         trained(sharded, world, "optimizer", more + length)));
}

TEST_CASE("fsdp: with divided parameters, the ranks compute what those with divided gradients do") {
  const auto [world, options] = GENERATE(
      OnRanks{2, {"--trainer.strategy.units", "[first, last]"}},
      OnRanks{3, {"--trainer.strategy.units", "[first, last]"}}, OnRanks{2, {"--trainer.accumulate_grad_batches", "3"}},
      OnRanks{3, {"--trainer.accumulate_grad_batches", "3"}},
      OnRanks{3, {"--model.spare", "true", "--trainer.strategy.find_unused_parameters", "true"}},
      OnRanks{2, {"--trainer.precision", "16-mixed", "--model.norm", "true"}},
      OnRanks{3, {"--trainer.precision", "bf16-mixed", "--model.dropout", "0.2"}},
      OnRanks{3, {"--trainer.gradient_clip_val", "0.1", "--trainer.log_grad_norm", "true"}},
      OnRanks{2, {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan", "--trainer.check_every", "1"}},
      // One rank has the loss that is not finite.
      OnRanks{2, {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan", "--trainer.strategy.units", "[first]"}},
      OnRanks{3,
              {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan_constant_between", "--trainer.strategy.units",
               "[first, last]", "--trainer.accumulate_grad_batches", "2"}},
      OnRanks{3, {"--trainer.debug", "true", "--data.num_train", "120", "--trainer.accumulate_grad_batches", "4"}});
  const Arguments more = kAdam + options;
  const Arguments length{"--trainer.max_steps", "30"};
  const TemporaryFolder gradients, parameters;
  CHECK(same_checkpoints(trained(gradients, world, "gradients", more + length),
                         trained(parameters, world, "parameters", more + length)));
}

TEST_CASE("fsdp: mesh with shard alone computes the same, also if the loss of one rank is not finite") {
  const Arguments options = kAdam + Arguments{"--trainer.on_nonfinite",   "skip",    "--model.trouble",     "nan",
                                              "--trainer.strategy.units", "[first]", "--trainer.max_steps", "30"};
  const TemporaryFolder fsdp, mesh;
  CHECK(same_bits(trained(fsdp, 2, "parameters", options), trained(mesh, 2, "mesh", options)));
}

TEST_CASE("fsdp: weights that are computed when they are divided are those of a module that is created whole") {
  const auto [world, more] = GENERATE(
      OnRanks{2, kAdam}, OnRanks{3, kAdam},
      OnRanks{2, kAdam + Arguments{"--model.dropout", "0.2", "--model.norm", "true"}}, OnRanks{3, kAdam + kMasters},
      OnRanks{2, kAdam + Arguments{"--trainer.precision", "64-true", "--trainer.accumulate_grad_batches", "3"}},
      OnRanks{3, kAdam + kMasters + Arguments{"--trainer.precision.keep_norm_fp32", "true", "--model.norm", "true"}},
      OnRanks{2, {"--optimizer", "Adagrad", "--optimizer.lr", "0.01", "--trainer.callbacks", "[WeightAveraging]"}},
      OnRanks{3, kAdam + Arguments{"--adapters.target", "[first]", "--adapters.rank", "2", "--adapters.train",
                                   "[last.*]"}});
  // Each weight has more than 1 MiB, and so have a bias and the parameters of the norm.
  const Arguments length{"--trainer.max_steps", "4", "--model.hidden", "300000"};
  const TemporaryFolder whole, later;
  const fs::path first = trained(whole, world, "gradients", more + length);
  const std::vector<Finished> ranks = fit(later.path(), world, "parameters", more + length);
  REQUIRE(all_exit(ranks, 0));
  CHECK(ranks.front().err.find("created whole") == std::string::npos);
  const fs::path second = last_checkpoint(later.path());
  CHECK(same_checkpoints(first, second));
  // The values of the checkpoint take the place of those of the constructor.
  const Arguments further = more + Arguments{"--trainer.max_steps", "6", "--model.hidden", "300000", "--ckpt_path"};
  REQUIRE(all_exit(fit(whole.path(), world, "gradients", further + Arguments{first.string()}), 0));
  REQUIRE(all_exit(fit(later.path(), world, "parameters", further + Arguments{second.string()}), 0));
  CHECK(same_checkpoints(last_checkpoint(whole.path()), last_checkpoint(later.path())));
}

TEST_CASE("fsdp: no rank has memory for all parameters, not even at the start and at the end") {
  const auto peak_mib = [](const Arguments& more) {
    return peak_without_steps(4, Arguments{"--trainer.strategy", "fsdp"} + more);
  };
  const Arguments divided{"--trainer.strategy.sharding", "parameters", "--trainer.strategy.state_dict_type", "sharded"};
  const double nothing = peak_mib(divided + kAlmostNoModel);
  const double parts = peak_mib(divided) - nothing;
  const double all = peak_mib({"--trainer.strategy.sharding", "gradients"}) - nothing;
  // 16 blocks of 12 MiB.
  INFO("nothing " << nothing << ", parts " << parts << ", all " << all << " MiB");
  CHECK(parts < 192 / 4 + 3 * 12);
  CHECK(peak_mib(divided + Arguments{"--trainer.strategy.deferred_init", "false"}) - nothing > 192);
  CHECK(all > 192);
}

TEST_CASE("fsdp: with divided gradients, two ranks compute what those of ddp do; more differ in the order of sums") {
  const Arguments more = GENERATE(
      kAdam, kAdam + Arguments{"--trainer.accumulate_grad_batches", "3", "--trainer.strategy.units", "[first]"},
      kAdam + Arguments{"--model.spare", "true", "--model.trouble", "unused_in_second_batch", "--model.trouble_rank",
                        "1", "--trainer.strategy.find_unused_parameters", "true"},
      kAdam + Arguments{"--trainer.precision", "16-mixed", "--model.norm", "true"},
      kAdam + Arguments{"--trainer.gradient_clip_val", "0.01", "--trainer.gradient_clip_algorithm", "value"},
      // The last window of an epoch is shorter, and is exchanged after its backwards.
      kAdam + Arguments{"--data.num_train", "120", "--trainer.accumulate_grad_batches", "4"},
      kAdam + Arguments{"--trainer.auto_micro_batch", "true"});
  Arguments of_ddp = more;
  if (const auto units = std::ranges::find(of_ddp, "--trainer.strategy.units"); units != of_ddp.end())
    of_ddp.erase(units, units + 2);
  const Arguments length{"--trainer.max_steps", "30"};
  const int world = GENERATE(2, 3);
  const TemporaryFolder ddp, sharded;
  const auto expected = trained(ddp, world, "ddp", of_ddp + length);
  const auto found = trained(sharded, world, "gradients", more + length);
  if (world == 2) CHECK(same_checkpoints(expected, found));
  // Adam makes steps of full length of differences in the last bit of a small gradient.
  CHECK(difference(expected, found) < 1e-4);
}

TEST_CASE("fsdp: groups of ranks have copies, and compute what all ranks do together") {
  const std::string size = GENERATE("1", "2", "4");
  const Arguments more{"--optimizer",
                       "SGD",
                       "--optimizer.lr",
                       "0.05",
                       "--optimizer.momentum",
                       "0.9",
                       "--trainer.gradient_clip_val",
                       "0.1",
                       "--trainer.strategy.units",
                       "[first, last]",
                       "--data.num_train",
                       "240"};
  const Arguments hybrid = more + Arguments{"--trainer.strategy.shard_size", size};
  const Arguments length{"--trainer.max_steps", "9"}, half{"--trainer.max_steps", "4"};
  const TemporaryFolder all, groups, parts;
  const auto expected = trained(all, 4, "parameters", more + length);
  const auto found = trained(groups, 4, "hybrid", hybrid + length);
  CHECK(difference(expected, found) < 1e-6);
  // Rank 0 saves, and has a part of the first copy only.
  REQUIRE(all_exit(fit(parts.path(), 4, "hybrid", hybrid + half), 0));
  REQUIRE(all_exit(fit(parts.path(), 4, "hybrid", hybrid + length + Arguments{"--resume"}), 0));
  CHECK(same_checkpoints(found, last_checkpoint(parts.path())));
}

TEST_CASE("fsdp: evaluations gather unit by unit, also if ranks have different numbers of batches") {
  const auto [samples, kind] = GENERATE(from_range(combinations<std::string, std::string>(
      {"1", "7", "40"}, {"set", "stream_of_blocks", "batches_of_blocks", "batches_in_turns"})));
  CAPTURE(samples, kind);
  const Arguments options = kAdam + Arguments{"--trainer.max_steps",
                                              "12",
                                              "--trainer.val_check_interval",
                                              "4",
                                              "--data.num_eval",
                                              samples,
                                              "--data.eval",
                                              kind,
                                              "--trainer.strategy.units",
                                              "[first, last]"};
  const TemporaryFolder gradients, parameters, copies;
  const auto expected = trained(gradients, 3, "gradients", options);
  CHECK(same_checkpoints(expected, trained(parameters, 3, "parameters", options)));
  const auto rows = [](const TemporaryFolder& folder) {
    return read_text(run_folder(folder.path()) / "metrics.jsonl");
  };
  CHECK(says(rows(gradients), "val_loss"));
  CHECK(rows(gradients) == rows(parameters));
  trained(copies, 4, "hybrid", options + Arguments{"--trainer.strategy.shard_size", "2"});
  CHECK(says(rows(copies), "val_loss"));
}

TEST_CASE("fsdp: a run that only evaluates divides the parameters, too, and finds the same values") {
  const std::string verb = GENERATE("validate", "test", "predict");
  const std::string samples = GENERATE("1", "7", "40");
  const TemporaryFolder folder;
  const auto checkpoint = trained(folder, 1, "", kAdam + Arguments{"--trainer.max_steps", "5"});
  // Of the lines of the ranks, what names values.
  const auto evaluated = [&](const std::string& strategy, int world, const Arguments& more) {
    const TemporaryFolder at;
    Arguments arguments =
        probe(verb, world, 12, Arguments{"--ckpt_path", checkpoint.string(), "--data.num_eval", samples} + more);
    *std::ranges::find(arguments, "ddp") = strategy;
    if (verb == "predict") arguments = arguments + Arguments{"--trainer.callbacks+=PredictionWriter"};
    const auto runs = run_ranks({.count = world, .folder = at.path()}, arguments);
    REQUIRE(all_exit(runs, 0));
    CHECK(says(runs[0].err, "fsdp: sharding") == (strategy == "fsdp"));
    return evaluated_values(at.path());
  };
  const Arguments units{"--trainer.strategy.units", "[first, last]", "--trainer.strategy.sharding"};
  CHECK(evaluated("ddp", 3, {}) == evaluated("fsdp", 3, units + Arguments{"parameters"}));
  CHECK(evaluated("ddp", 4, {}) ==
        evaluated("fsdp", 4, units + Arguments{"hybrid", "--trainer.strategy.shard_size", "2"}));
}

TEST_CASE("fsdp: frozen parameters are divided, and so are the layers that adapters change") {
  const Arguments more =
      GENERATE(Arguments{"--trainer.callbacks+=Finetuning", "--trainer.callbacks.freeze", "['first.*']"},
               Arguments{"--adapters.rank", "2", "--adapters.target", "[first]"});
  const Arguments options = kAdam + more + Arguments{"--trainer.max_epochs", "2"};
  const TemporaryFolder gradients, parameters, parts;
  CHECK(same_checkpoints(trained(gradients, 2, "gradients", options), trained(parameters, 2, "parameters", options)));
  CHECK(read_text(run_folder(gradients.path()) / "metrics.jsonl") ==
        read_text(run_folder(parameters.path()) / "metrics.jsonl"));
  const auto divided =
      trained(parts, 2, "parameters", options + Arguments{"--trainer.strategy.state_dict_type", "sharded"});
  const auto whole = fulgur::read_checkpoint(last_checkpoint(gradients.path())).module;
  const auto joined = fulgur::read_checkpoint(divided).module;
  CHECK(joined.size() == whole.size());
  for (const auto& [name, tensor] : whole)
    CHECK(std::ranges::any_of(joined,
                              [&](const auto& other) { return other.first == name && other.second.equal(tensor); }));
  for (const auto& [name, tensor] : fulgur::read_safetensors(divided / "model.safetensors").tensors)
    CHECK_FALSE(says(name, "weight"));
}

TEST_CASE("fsdp: averaged weights are validated, of divided parameters, too") {
  const Arguments options = kAdam + Arguments{"--trainer.max_steps",
                                              "12",
                                              "--trainer.val_check_interval",
                                              "4",
                                              "--data.num_eval",
                                              "7",
                                              "--trainer.callbacks+=WeightAveraging",
                                              "--model.norm",
                                              "true",
                                              "--trainer.strategy.units",
                                              "[first, last]"};
  const TemporaryFolder gradients, parameters;
  CHECK(same_checkpoints(trained(gradients, 3, "gradients", options), trained(parameters, 3, "parameters", options)));
  const auto rows = [](const TemporaryFolder& folder) {
    return read_text(run_folder(folder.path()) / "metrics.jsonl");
  };
  CHECK(rows(gradients) == rows(parameters));
}

TEST_CASE("fsdp: the norm of divided gradients is that of all ranks") {
  const int world = GENERATE(2, 3);
  const Arguments more{"--optimizer",
                       "SGD",
                       "--optimizer.lr",
                       "0.05",
                       "--trainer.gradient_clip_val",
                       "0.1",
                       "--trainer.log_grad_norm",
                       "true",
                       "--trainer.max_steps",
                       "30"};
  const TemporaryFolder ddp, sharded;
  const auto expected = trained(ddp, world, "ddp", more);
  CHECK(difference(expected, trained(sharded, world, "gradients", more)) < 1e-6);
}

TEST_CASE("fsdp: gradients that are exchanged as bfloat16 or float32 lead to weights near those of ddp") {
  const auto [dtype, near, far] = GENERATE(table<std::string, double, double>({
      {"float32", -1, 1e-6},
      {"bfloat16", 1e-6, 1e-2},
      {"float16", 1e-7, 1e-3},
  }));
  const Arguments more{"--optimizer", "SGD", "--optimizer.lr", "0.05", "--trainer.max_steps", "20"};
  const TemporaryFolder ddp, sharded;
  const auto expected = trained(ddp, 2, "ddp", more);
  const double found = difference(
      expected, trained(sharded, 2, "gradients", more + Arguments{"--trainer.strategy.reduce_dtype", dtype}));
  CHECK(found > near);
  CHECK(found < far);
}

TEST_CASE("fsdp: optimizers step parts of float32 copies, with the values of those of ddp") {
  const auto [sharding, more] = GENERATE(from_range(combinations<std::string, Arguments>(
      {"optimizer", "gradients", "parameters"},
      {{},
       {"--trainer.precision.keep_norm_fp32", "true", "--model.norm", "true"},
       {"--trainer.accumulate_grad_batches", "3", "--data.num_train", "120"},
       {"--trainer.on_nonfinite", "skip", "--model.trouble", "nan", "--trainer.check_every", "1"}})));
  const Arguments options = kAdam + kMasters + more + Arguments{"--trainer.max_steps", "30"};
  const TemporaryFolder ddp, sharded;
  const auto expected = trained(ddp, 2, "ddp", options), found = trained(sharded, 2, sharding, options);
  CHECK(same_checkpoints(expected, found));
  CHECK(difference_of_masters(expected, found) == 0);
}

TEST_CASE("fsdp: float32 copies get the clipped and unscaled gradients") {
  const auto [sharding, more, tolerance] = GENERATE(table<std::string, Arguments, double>({
      // Clipped in bfloat16.
      {"optimizer", kMasters, 2e-2},
      {"gradients", kMasters, 1e-5},
      {"parameters", kMasters, 1e-5},
      {"hybrid", kMasters, 1e-5},
      {"parameters",
       {"--trainer.precision", "16-true", "--trainer.precision.master_weights", "true",
        "--trainer.precision.loss_scaling", "true"},
       1e-5},
  }));
  const Arguments options =
      Arguments{
          "--optimizer", "SGD", "--optimizer.lr", "0.05", "--trainer.max_steps", "20", "--trainer.gradient_clip_val",
          "0.1"} +
      more;
  const TemporaryFolder ddp, sharded;
  CHECK(difference_of_masters(trained(ddp, 2, "ddp", options), trained(sharded, 2, sharding, options)) < tolerance);
}

TEST_CASE("fsdp: a run with parts of float32 copies continues to the bit, also as ddp, and in parts") {
  const std::string sharding = GENERATE("optimizer", "parameters");
  const Arguments type = sharding == "optimizer"
                             ? Arguments{}
                             : Arguments{"--trainer.strategy.state_dict_type", GENERATE("full", "sharded")};
  const Arguments options = kAdam + kMasters + Arguments{"--data.num_train", "120", "--trainer.max_epochs", "3"};
  const TemporaryFolder whole, parts, other;
  const auto expected = trained(whole, 2, "ddp", options);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding,
                       options + type +
                           Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                                     "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", "7"}),
                   75));
  fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding, options + type + Arguments{"--resume"}), 0));
  REQUIRE(all_exit(fit(other.path(), 2, "ddp", options + Arguments{"--resume", "--allow-config-change"}), 0));
  CHECK(difference_of_masters(expected, last_checkpoint(parts.path())) == 0);
  CHECK(has_whole_masters(last_checkpoint(parts.path())) == (type.empty() || type.back() == "full"));
  CHECK(same_checkpoints(expected, last_checkpoint(other.path())));
  CHECK(difference_of_masters(expected, last_checkpoint(other.path())) == 0);
}

TEST_CASE("fsdp: a run with float32 weights begins with the float32 copies of a checkpoint") {
  const auto [strategy, type] = GENERATE(table<std::string, Arguments>(
      {{"ddp", {}}, {"parameters", {}}, {"parameters", {"--trainer.strategy.state_dict_type", "sharded"}}}));
  const TemporaryFolder folder;
  const auto half = trained(folder, 2, strategy, kAdam + kMasters + type + Arguments{"--trainer.max_steps", "6"});
  const auto copies = fulgur::read_checkpoint(half).state.at("precision").at("master_weights").as_map();
  const TemporaryFolder more;
  const auto runs = fit(more.path(), 2, strategy,
                        kAdam + Arguments{"--trainer.max_steps", "7", "--optimizer.lr", "0", "--optimizer.weight_decay",
                                          "0", "--load.weights_only", "true", "--ckpt_path", half.string()});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].out + runs[0].err, "are the float32 copies of the checkpoint"));
  for (const auto& [name, value] : fulgur::read_checkpoint(last_checkpoint(more.path())).module)
    if (const auto copy = copies.find(name); copy != copies.end()) CHECK(value.equal(copy->second.tensor()));
}

TEST_CASE("fsdp: 2 and 4 ranks reach the weights of one process on the batches of all") {
  const auto [sharding, world, extra] = GENERATE(from_range(combinations<std::string, int, Arguments>(
      {"optimizer", "gradients", "parameters"}, {2, 4}, {{}, {"--trainer.accumulate_grad_batches", "3"}})));
  const Arguments more = kAdam + extra;
  const TemporaryFolder one, many;
  const Arguments length{"--trainer.max_steps", "100"};
  CHECK(difference(trained(one, 1, "", more + length), trained(many, world, sharding, more + length)) < 1e-6);
}

TEST_CASE("fsdp: each rank has its part of the state: half of it with two ranks, a quarter with four") {
  const TemporaryFolder folder;
  for (const auto& [ranks, sharding, bytes] : {std::tuple{"2", "optimizer", "gradients 4 + optimizer 4 = 12"},
                                               {"4", "optimizer", "gradients 4 + optimizer 2 = 10"},
                                               {"2", "gradients", "gradients 2 + optimizer 4 = 10"},
                                               {"4", "gradients", "gradients 1 + optimizer 2 = 7"},
                                               {"2", "parameters", "weights 2 + gradients 2 + optimizer 4 = 8"},
                                               {"4", "parameters", "weights 1 + gradients 1 + optimizer 2 = 4"},
                                               // A copy is divided among the ranks of a node, and there is one node.
                                               {"4", "hybrid", "weights 1 + gradients 1 + optimizer 2 = 4"},
                                               {"2", "optimizer + masters",
                                                "weights 2 + gradients 2 + master weights 2 + their gradients 2 + "
                                                "optimizer 4 = 12"},
                                               {"2", "gradients + masters",
                                                "weights 2 + gradients 0 + master weights 2 + their gradients 2 + "
                                                "optimizer 4 = 10"},
                                               {"4", "parameters + masters",
                                                "weights 0.5 + gradients 0 + master weights 1 + their gradients 1 + "
                                                "optimizer 2 = 4.5"}}) {
    const std::string kind = sharding;
    const Arguments masters = kind.ends_with(" + masters") ? kMasters : Arguments{"--trainer.precision", "32-true"};
    const Finished run =
        trainer(Arguments{"fit", "--model", "MlpClassifier", "--data", "SyntheticDataModule", "--optimizer", "AdamW",
                          "--trainer.accelerator", "cpu", "--trainer.devices", ranks, "--trainer.strategy", "fsdp",
                          "--trainer.strategy.sharding", kind.substr(0, kind.find(' ')), "--trainer.max_steps", "2"} +
                    masters,
                {.folder = folder.path(), .environment = {"OMP_NUM_THREADS=1"}});
    CAPTURE(run.out, run.err);
    CHECK(run.exit_code == 0);
    CHECK(says(run.out + run.err, bytes));
  }
}

TEST_CASE("fsdp: frozen parameters, which have no state, do not count, and train once they are not frozen") {
  const Arguments more = kAdam + Arguments{"--trainer.max_epochs",
                                           "3",
                                           "--trainer.callbacks+=Finetuning",
                                           "--trainer.callbacks.freeze",
                                           "['first.*']",
                                           "--trainer.callbacks.unfreeze",
                                           GENERATE("[]", "[{at: 1ep, pattern: 'first.*'}]")};
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters");
  const TemporaryFolder ddp, sharded;
  CHECK(same_checkpoints(trained(ddp, 2, "ddp", more), trained(sharded, 2, sharding, more)));
}

TEST_CASE("fsdp: manual optimization of two parts, with the states of ddp") {
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters");
  const Arguments pair{"--model", "ProbePair",   "--model.how", GENERATE("toggled", "inputs"), "--trainer.max_epochs",
                       "5",       "--optimizer", "null"};
  const TemporaryFolder one, ddp, many;
  const auto alone = trained(one, 1, "", pair);
  const auto sharded = trained(many, 2, sharding, pair);
  CHECK(difference(alone, sharded) < 1e-6);
  CHECK(same_checkpoints(trained(ddp, 2, "ddp", pair), sharded));
}

TEST_CASE("fsdp: gradients that were exchanged, and wait for a step, are in the checkpoint") {
  const std::string sharding = GENERATE("gradients", "parameters", "hybrid");
  // The second epoch begins with the gradients of two batches.
  const Arguments pair{"--model",     "ProbePair", "--model.accumulate", "4", "--model.exchanges_each", "true",
                       "--optimizer", "null"};
  const Arguments whole = pair + Arguments{"--trainer.max_epochs", "3"};
  const TemporaryFolder ddp, quiet, parts;
  const auto expected = trained(quiet, 2, sharding, whole);
  CHECK(difference(trained(ddp, 2, "ddp", whole), expected) < 1e-6);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding, pair + Arguments{"--trainer.max_epochs", "1"}), 0));
  const TemporaryFolder other;
  fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding, whole + Arguments{"--resume", "--allow-config-change"}), 0));
  CHECK(same_checkpoints(expected, last_checkpoint(parts.path())));
  const auto refused = fit(other.path(), 2, "ddp", whole + Arguments{"--resume", "--allow-config-change"});
  CHECK(all_exit(refused, 4));
  CHECK(says(refused[0].err, "Resume with fsdp"));
}

TEST_CASE("fsdp: copies that differ, and memory that was replaced, are errors") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& sharding, const Arguments& more) {
    const auto runs = fit(folder.path(), 2, sharding,
                          Arguments{"--optimizer", "SGD", "--optimizer.lr", "0.05", "--trainer.max_steps", "6"} + more);
    CHECK_FALSE(all_exit(runs, 0));
    return runs[0].err;
  };
  const Arguments flips{"--model.trouble", "flip", "--trainer.strategy.shard_size", "1"};
  CHECK(says(message("hybrid", flips), "the copies of the weights differ"));
  for (const char* sharding : {"optimizer", "gradients", "parameters"})
    CHECK(says(message(sharding, {"--model.trouble", "replace_memory", "--model.trouble_rank", "0"}), "set_data()"));
}

TEST_CASE("fsdp: weights are checked between the two forwards of a manual training step") {
  const Arguments pair{"--model",     "ProbePair", "--trainer.check_every", "1", "--trainer.max_epochs", "3",
                       "--optimizer", "null"};
  const TemporaryFolder ddp, parameters;
  CHECK(same_checkpoints(trained(ddp, 2, "ddp", pair), trained(parameters, 2, "parameters", pair)));
}

TEST_CASE("fsdp: what a training step writes to divided parameters stays, and it can read and write them whole") {
  const Arguments more{"--optimizer",         "SGD",
                       "--optimizer.lr",      "0.05",
                       "--trainer.max_steps", "12",
                       "--model.trouble",     GENERATE("clamp_data", "read_whole", "write_whole", "shrink_data")};
  const Arguments units = GENERATE(Arguments{}, Arguments{"--trainer.strategy.units", "[first, last]"});
  const TemporaryFolder ddp, parameters;
  CHECK(same_checkpoints(trained(ddp, 2, "ddp", more), trained(parameters, 2, "parameters", more + units)));
}

TEST_CASE("fsdp: ranks that gather units of the same size in different orders are an error, not wrong values") {
  struct Row {
    const char *strategy, *trouble;
    Arguments more = {};
  };
  // With frozen layers no exchange of gradients would wait for the other order.
  const Arguments frozen{"--trainer.callbacks+=Finetuning", "--trainer.callbacks.freeze", "[first.*, 'layer*']"};
  const Arguments parameters{"--trainer.strategy.sharding", "parameters"}, shard{"--trainer.strategy.mesh.shard", "2"},
      tensor{"--trainer.strategy.mesh.tensor", "2",    "--trainer.strategy.tensor_plan", "{'layer*': column}",
             "--trainer.strategy.evaluation",  "units"};
  const Row row =
      GENERATE_COPY(Row{"fsdp", "reorders", parameters}, Row{"fsdp", "reorders", parameters + frozen},
                    Row{"fsdp", "reorders_later", parameters + frozen}, Row{"fsdp", "reorders_evaluations", parameters},
                    Row{"mesh", "reorders", shard}, Row{"mesh", "reorders_later", shard + frozen},
                    Row{"mesh", "reorders_evaluations", shard}, Row{"mesh", "reorders_evaluations", tensor});
  CAPTURE(row.strategy, row.trouble, row.more);
  const TemporaryFolder folder;
  Arguments arguments =
      probe("fit", 2, 8,
            kAdam + row.more +
                Arguments{"--model", "ProbeStages", "--model.trouble", row.trouble, "--trainer.max_steps", "8",
                          "--trainer.val_check_interval", "4", "--trainer.strategy.units",
                          "[first, layer0, layer1, layer2, layer3, last]"});
  *std::ranges::find(arguments, "ddp") = row.strategy;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, arguments);
  CHECK(all_exit(runs, 5));
  INFO(runs[0].err);
  CHECK(says(runs[0].err, "ranks have gathered divided parameters in different orders"));
  // One step is over in which the orders were different.
  if (std::string_view(row.trouble) != "reorders_later")
    CHECK(says(runs[0].err, "rank 0 has read 'layer0.weight', and rank 1 'layer3.weight' in its place"));
}

TEST_CASE("fsdp: on two GPUs, a rank that gathers one unit more than the others is named with that unit", "[gpu]") {
  require_gpus(2);
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2, "parameters",
                        kAdam + Arguments{"--model", "ProbeStages", "--model.trouble", "reads_more",
                                          "--trainer.accelerator", "cuda", "--trainer.max_steps", "2",
                                          "--trainer.strategy.units", "[first, layer0, layer1, layer2, layer3, last]"});
  CHECK(all_exit(runs, 5));
  INFO(runs[0].err);
  CHECK(says(runs[0].err, "rank 0 has read nothing, and rank 1 'layer2.weight' in its place"));
}

TEST_CASE("fsdp: a rank that reads other layers than the others ends them with an error that names what they gather") {
  const TemporaryFolder folder;
  const auto runs =
      fit(folder.path(), 2, "parameters",
          kAdam + Arguments{"--model", "ProbeStages", "--model.trouble", "skips_layers", "--trainer.max_steps", "2",
                            "--trainer.strategy.units", "[first, layer0, layer1, layer2, layer3, last]"});
  CHECK(all_exit(runs, 5));
  const std::string all = runs[0].err + runs[1].err;
  INFO(all);
  CHECK(says(all, "this rank gathers the unit of '"));
  CHECK(says(all, "run.collectives().broadcast(choice, 0)"));
}

TEST_CASE("fsdp: a step while parameters are held whole is an error") {
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2, "parameters",
                        kAdam + Arguments{"--trainer.max_steps", "3", "--trainer.callbacks+=ProbeCallback",
                                          "--trainer.callbacks.holds_over_step", "true"});
  CHECK_FALSE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "Release it before the step"));
}

TEST_CASE("fsdp: a window whose last batch has no loss steps by the gradients of the others") {
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters");
  const Arguments more = kAdam + Arguments{"--trainer.accumulate_grad_batches",
                                           "2",
                                           "--trainer.max_steps",
                                           "10",
                                           "--model.trouble",
                                           "no_loss_every_fourth"};
  const Arguments group{"--trainer.strategy",
                        "fsdp",
                        "--trainer.strategy.sharding",
                        sharding,
                        "--trainer.strategy.process_group_backend",
                        "gloo"};
  const TemporaryFolder alone, of_group;
  const auto expected = trained(alone, 1, "", more);
  CHECK(same_checkpoints(expected, trained(of_group, 1, "", group + more)));
}

TEST_CASE("fsdp: gather averages the weights of local steps, and leaves them as they are") {
  const Arguments options = kAdam + Arguments{"--trainer.max_steps", "7", "--trainer.strategy.local_sgd.period", "3"};
  const TemporaryFolder quiet, gathered;
  const auto expected = trained(quiet, 2, "ddp", options);
  CHECK(same_checkpoints(expected, trained(gathered, 2, "ddp",
                                           options + Arguments{"--trainer.callbacks+=ProbeCallback",
                                                               "--trainer.callbacks.gathers", "true"})));
}

TEST_CASE("fsdp: gather gives whole parameters between steps and in validations") {
  const std::string sharding = GENERATE("optimizer", "gradients", "parameters", "hybrid");
  const Arguments more = sharding == "hybrid"    ? Arguments{"--trainer.strategy.shard_size", "2"}
                         : GENERATE(false, true) ? Arguments{"--trainer.strategy.units", "[first, last]"}
                                                 : Arguments{};
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2, sharding,
                        kAdam + more +
                            Arguments{"--trainer.val_check_interval", "2", "--trainer.max_steps", "5",
                                      "--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.gathers", "true"});
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err + runs[0].out, "gathered parameters: "));
}

TEST_CASE("fsdp: an interrupted run continues to the bit, and its checkpoint is that of any other strategy") {
  const auto [sharding, world, cut_at] = GENERATE(from_range(
      combinations<std::string, int, std::string>({"optimizer", "gradients", "parameters"}, {2, 3}, {"1", "7"})));
  const Arguments options = kAdam + Arguments{"--trainer.accumulate_grad_batches",
                                              "2",
                                              "--model.dropout",
                                              "0.2",
                                              "--data.num_train",
                                              "120",
                                              "--trainer.max_epochs",
                                              "3"};
  const TemporaryFolder whole, parts;
  const auto expected = trained(whole, world, sharding, options);
  REQUIRE(all_exit(
      fit(parts.path(), world, sharding,
          options + Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                              "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", cut_at}),
      75));
  const TemporaryFolder other;
  fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  REQUIRE(all_exit(fit(parts.path(), world, sharding, options + Arguments{"--resume"}), 0));
  CHECK(same_checkpoints(expected, last_checkpoint(parts.path())));
  // ddp continues it, with the same numbers: a sum of two does not depend on the order.
  REQUIRE(all_exit(fit(other.path(), world, "ddp", options + Arguments{"--resume", "--allow-config-change"}), 0));
  if (sharding == "optimizer" || world == 2) CHECK(same_checkpoints(expected, last_checkpoint(other.path())));
  CHECK(difference(expected, last_checkpoint(other.path())) < 1e-6);
}

TEST_CASE("fsdp: a run of one process or of ddp is continued by other numbers of ranks") {
  const TemporaryFolder whole, parts;
  const Arguments options = kAdam + Arguments{"--data.num_train", "96"};
  const auto expected = trained(whole, 1, "", options + Arguments{"--trainer.max_steps", "24"});
  REQUIRE(all_exit(fit(parts.path(), 1, "", options + Arguments{"--trainer.max_steps", "5"}), 0));
  for (const auto& [world, strategy, steps] :
       {std::tuple{2, "optimizer", "10"}, {4, "ddp", "14"}, {3, "parameters", "19"}, {1, "", "24"}}) {
    const auto runs = fit(parts.path(), world, strategy,
                          options + Arguments{"--trainer.max_steps", steps, "--resume", "--allow-config-change"});
    REQUIRE(all_exit(runs, 0));
  }
  CHECK(difference(expected, last_checkpoint(parts.path())) < 1e-6);
}

TEST_CASE("fsdp: on two GPUs the ranks compute what those of ddp do, over NCCL", "[gpu]") {
  require_gpus(2);
  const Arguments more = kAdam + Arguments{"--trainer.accelerator",       "cuda", "--trainer.max_steps", "20",
                                           "--trainer.gradient_clip_val", "0.5"};
  const TemporaryFolder ddp, optimizer, gradients, parameters;
  const auto expected = trained(ddp, 2, "ddp", more);
  CHECK(same_checkpoints(expected, trained(optimizer, 2, "optimizer", more)));
  const Arguments units = more + Arguments{"--trainer.strategy.units", "[first, last]"};
  const auto of_gradients = trained(gradients, 2, "gradients", units);
  CHECK(difference(expected, of_gradients) < 1e-5);  // another order in the norm
  CHECK(same_checkpoints(of_gradients, trained(parameters, 2, "parameters", units)));
  const TemporaryFolder ddp_masters, parts;
  const Arguments masters = kAdam + kMasters + Arguments{"--trainer.accelerator", "cuda", "--trainer.max_steps", "20"};
  CHECK(difference_of_masters(trained(ddp_masters, 2, "ddp", masters), trained(parts, 2, "parameters", masters)) <
        1e-5);
}

namespace {

const Arguments kOffload{"--trainer.strategy.offload", "optimizer"};

}  // namespace

TEST_CASE("fsdp: on two GPUs, optimizers step in host memory, with the values of those on the devices", "[gpu]") {
  require_gpus(2);
  const Arguments clipped{"--trainer.gradient_clip_val", "0.5"}, bf16{"--trainer.precision", "bf16-true"},
      windows{"--trainer.accumulate_grad_batches", "3", "--data.num_train", "120"},
      nan{"--trainer.on_nonfinite", "skip", "--model.trouble", "nan", "--trainer.check_every", "1"},
      writes{"--model.trouble", "clamp_data"}, swaps{"--model.trouble", "swap_data"},
      norms = bf16 + Arguments{"--trainer.precision.keep_norm_fp32", "true", "--model.norm", "true"};
  const auto [sharding, more] = GENERATE_COPY(table<std::string, Arguments>({{"optimizer", clipped},
                                                                             {"optimizer", kMasters},
                                                                             {"optimizer", nan},
                                                                             {"optimizer", writes},
                                                                             {"gradients", windows},
                                                                             {"optimizer", swaps},
                                                                             {"gradients", writes},
                                                                             {"gradients", bf16},
                                                                             {"parameters", clipped},
                                                                             {"parameters", kMasters},
                                                                             {"parameters", nan},
                                                                             {"parameters", writes},
                                                                             {"parameters", swaps},
                                                                             {"parameters", norms},
                                                                             {"hybrid", windows}}));
  CAPTURE(sharding, more);
  const Arguments options = kAdam + more + Arguments{"--trainer.accelerator", "cuda", "--trainer.max_steps", "20"};
  const TemporaryFolder on_device, in_host_memory;
  const auto expected = trained(on_device, 2, sharding, options),
             found = trained(in_host_memory, 2, sharding, options + kOffload);
  // Kernels of CPUs and GPUs differ in the last bits.
  const bool is_half = std::ranges::find(more, "bf16-true") != more.end();
  CHECK(difference(expected, found) < (is_half ? 1e-2 : 1e-5));
  if (more == kMasters) CHECK(difference_of_masters(expected, found) < 1e-4);
}

TEST_CASE("fsdp: on two GPUs, optimizers in host memory step unscaled gradients, or none if they are not finite",
          "[gpu]") {
  require_gpus(2);
  const std::string sharding = GENERATE("gradients", "parameters");
  const std::string trouble = GENERATE("none", "nan");
  const Arguments options{"--optimizer",
                          "SGD",
                          "--optimizer.lr",
                          "0.05",
                          "--trainer.accelerator",
                          "cuda",
                          "--trainer.max_steps",
                          "20",
                          "--trainer.precision",
                          "16-true",
                          "--trainer.precision.master_weights",
                          "true",
                          "--trainer.precision.loss_scaling",
                          "true",
                          "--trainer.gradient_clip_val",
                          "0.1",
                          "--trainer.on_nonfinite",
                          "skip",
                          "--model.trouble",
                          trouble};
  const TemporaryFolder on_device, in_host_memory;
  CHECK(difference_of_masters(trained(on_device, 2, sharding, options),
                              trained(in_host_memory, 2, sharding, options + kOffload)) < 1e-4);
}

TEST_CASE("fsdp: on two GPUs, a run with optimizers in host memory continues to the bit, in parts, and without that",
          "[gpu]") {
  require_gpus(2);
  const std::string sharding = GENERATE("optimizer", "parameters");
  const Arguments precision = GENERATE(Arguments{}, kMasters);
  const Arguments type{"--trainer.strategy.state_dict_type", sharding == "optimizer" ? "full" : "sharded"};
  const Arguments options =
      kAdam + precision + type +
      Arguments{"--trainer.accelerator", "cuda", "--data.num_train", "120", "--trainer.max_epochs", "3"};
  const TemporaryFolder whole, parts, other;
  const auto expected = trained(whole, 2, sharding, options + kOffload);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding,
                       options + kOffload +
                           Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                                     "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", "7"}),
                   75));
  fs::copy(parts.path(), other.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  REQUIRE(all_exit(fit(parts.path(), 2, sharding, options + kOffload + Arguments{"--resume"}), 0));
  CHECK(same_bits(expected, last_checkpoint(parts.path())));
  REQUIRE(all_exit(fit(other.path(), 2, sharding, options + Arguments{"--resume", "--allow-config-change"}), 0));
  CHECK(difference(expected, last_checkpoint(other.path())) < (precision.empty() ? 1e-5 : 1e-2));
}

TEST_CASE("fsdp: on two GPUs, the run says what is in host memory", "[gpu]") {
  require_gpus(2);
  const TemporaryFolder folder;
  for (const auto& [sharding, precision, line] :
       {std::tuple{"optimizer", "32-true",
                   "weights 4 + gradients 4 = 8; in host memory: weights 2 + gradients 2 + optimizer 4 = 8"},
        {"gradients", "32-true",
         "weights 4 + gradients 0 = 4; in host memory: weights 2 + gradients 2 + optimizer 4 = 8"},
        {"parameters", "32-true",
         "weights 2 + gradients 0 = 2; in host memory: weights 2 + gradients 2 + optimizer 4 = 8"}}) {
    const Finished run = trainer(Arguments{"fit", "--model", "MlpClassifier", "--data", "SyntheticDataModule",
                                           "--optimizer", "AdamW", "--trainer.accelerator", "cuda", "--trainer.devices",
                                           "2", "--trainer.strategy", "fsdp", "--trainer.strategy.sharding", sharding,
                                           "--trainer.max_steps", "2", "--trainer.precision", precision} +
                                     kOffload,
                                 {.folder = folder.path(), .environment = {"OMP_NUM_THREADS=1"}});
    CAPTURE(run.out, run.err);
    CHECK(run.exit_code == 0);
    CHECK(says(run.err, line));
  }
}

TEST_CASE("fsdp: optimizers in host memory are no different on CPUs, with a warning") {
  const TemporaryFolder plain, offloaded;
  const Arguments length{"--trainer.max_steps", "6"};
  const auto expected = trained(plain, 2, "gradients", kAdam + length);
  const auto runs = fit(offloaded.path(), 2, "gradients", kAdam + length + kOffload);
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "[strategies.offload_on_cpu]"));
  CHECK(same_checkpoints(expected, last_checkpoint(offloaded.path())));
}

TEST_CASE("fsdp: in a run of one process, a warning says that nothing is divided, and nothing moves to host memory") {
  const TemporaryFolder folder;
  const auto warnings = [&](const Arguments& more) {
    const Finished run = trainer(probe("fit", 1, 8,
                                       Arguments{"--trainer.max_steps", "1", "--trainer.strategy", "fsdp",
                                                 "--trainer.strategy.sharding", "optimizer"} +
                                           more),
                                 {.folder = folder.path(), .environment = {"OMP_NUM_THREADS=1"}});
    CHECK(run.exit_code == 0);
    CHECK(says(run.err, "[strategies.one_process]"));
    CHECK(says(run.err, "fsdp divides nothing in a run of one process"));
    return run.err;
  };
  const std::string moved = "offload moves nothing to host memory",
                    advice = "for one GPU, set process_group_backend: nccl";
  const std::string with = warnings(kOffload), without = warnings({});
  CHECK(says(with, moved));
  CHECK(says(with, advice));
  CHECK_FALSE(says(without, moved));
  CHECK_FALSE(says(without, advice));
}

TEST_CASE("fsdp: the run says what is divided, and warns of one unit") {
  const TemporaryFolder parts, one;
  const Arguments length{"--trainer.max_steps", "1"};
  const auto runs = fit(parts.path(), 2, "parameters", length + Arguments{"--trainer.strategy.units", "[first, last]"});
  CHECK(says(runs[0].err, "fsdp: sharding: parameters · 2 units, the largest with "));
  CHECK_FALSE(says(runs[0].err, "[strategies.one_unit]"));
  // The parameters are whole afterwards, once.
  CHECK_FALSE(says(runs[0].err, "[strategies.shared_memory]"));
  CHECK(says(fit(one.path(), 2, "parameters", length + Arguments{"--trainer.strategy.units", "[]"})[0].err,
             "[strategies.one_unit]"));
}

TEST_CASE("fsdp: a parameter without a gradient is named") {
  const TemporaryFolder folder;
  const auto runs = fit(folder.path(), 2, "gradients", {"--model.spare", "true", "--trainer.max_steps", "1"});
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "these got none: spare"));
}

TEST_CASE("fsdp: what cannot be divided is refused, with what to use instead") {
  const TemporaryFolder folder;
  const auto message = [&](const Arguments& more, const std::string& sharding = "optimizer") {
    const auto runs = fit(folder.path(), 2, sharding, more + Arguments{"--trainer.max_steps", "1"});
    CHECK(all_exit(runs, 2));
    return runs[0].err;
  };
  CHECK(says(message({"--optimizer", "Muon"}), "Muon needs whole parameters"));
  CHECK(says(message({"--optimizer", "LBFGS"}), "LBFGS needs whole parameters"));
  CHECK(says(message({"--trainer.precision", "16-true", "--trainer.precision.master_weights", "true",
                      "--trainer.precision.loss_scaling", "true"}),
             "Use sharding: gradients, or loss_scaling: false."));
  CHECK(says(message({"--trainer.strategy.units", "[frist]"}), "'frist' matches none. The modules are first"));
  CHECK(says(message({"--trainer.strategy.reduce_dtype", "bfloat16"}), "reduce_dtype has no effect"));
  for (const auto& [option, value] : {std::pair{"compression", "bf16"},
                                      {"static_graph", "true"},
                                      {"gradient_as_bucket_view", "true"},
                                      {"bucket_cap_mb", "1"}})
    CHECK(says(message({fulgur::cat("--trainer.strategy.", option), value}, "gradients"),
               fulgur::cat(option, " has no effect with sharding: gradients")));
  for (const std::string sharding : {"optimizer", "gradients"})
    CHECK(says(message({"--trainer.strategy.deferred_init", "false"}, sharding),
               fulgur::cat("deferred_init: false has no effect with sharding: ", sharding)));
  CHECK(
      says(message({"--trainer.auto_micro_batch", "true"}, "parameters"), "auto_micro_batch repeats parts of a batch"));
  CHECK(says(message({"--trainer.callbacks+=GradientMonitor"}, "gradients"), "whole gradient of each parameter"));
  const Finished unnamed = trainer({"fit", "--model", "MlpClassifier", "--data", "SyntheticDataModule", "--optimizer",
                                    "SGD", "--trainer.strategy", "fsdp"},
                                   {.folder = folder.path()});
  CHECK(unnamed.exit_code == 2);
  CHECK(says(unnamed.err, "trainer.strategy.init_args.sharding: required option is missing"));
}

}  // namespace fsdp_test
