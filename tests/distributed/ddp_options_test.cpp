#include "ranks.h"

#include "distributed/backend_rules.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <nlohmann/json.hpp>

namespace ddp_options_test {

using namespace fulgur::test;
using fulgur::detail::choose_backend;

namespace {

std::filesystem::path fit(const TemporaryFolder& folder, const std::vector<std::string>& more, int world = 2) {
  std::vector<std::string> arguments{"--trainer.max_steps", "20"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  REQUIRE(all_exit(run_ranks({.count = world, .folder = folder.path()}, probe("fit", world, 8, arguments)), 0));
  return last_checkpoint(folder.path());
}

size_t buckets(const std::filesystem::path& checkpoint) {
  const std::string text = read_text(checkpoint / "state.json");
  const size_t begin = text.find("\"buckets\"");
  REQUIRE(begin != std::string::npos);
  size_t count = 0;
  int depth = 0;
  for (size_t i = text.find('[', begin); i < text.size(); ++i) {
    if (text[i] == '[' && ++depth == 2) ++count;
    if (text[i] == ']' && --depth == 0) break;
  }
  return count;
}

}  // namespace

TEST_CASE("the backend: gloo for the CPU, nccl for GPUs, and reasons for invalid combinations") {
  CHECK(choose_backend("auto", "cpu") == "gloo");
  CHECK(choose_backend("auto", "cuda") == "nccl");
  CHECK(choose_backend("gloo", "cpu") == "gloo");
  CHECK(choose_backend("gloo", "cuda") == "gloo");
  CHECK(choose_backend("nccl", "cuda") == "nccl");
  CHECK_THROWS_AS(choose_backend("nccl", "cpu"), fulgur::ConfigError);
  CHECK_THROWS_AS(choose_backend("mpi", "cpu"), fulgur::ConfigError);
  const TemporaryFolder folder;
  for (const char* backend : {"nccl", "mpi"}) {
    const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                                probe("fit", 2, 8, {"--trainer.strategy.process_group_backend", backend}));
    CHECK(all_exit(runs, 2));
    CHECK(says(runs[0].err, backend));
  }
}

TEST_CASE("ddp: cluster_environment says where the place is read from") {
  const TemporaryFolder folder;
  const auto elsewhere = run_ranks({.count = 2, .folder = folder.path(), .started = {0}},
                                   probe("fit", 2, 8, {"--trainer.strategy.cluster_environment", "torchrun"}));
  CHECK(all_exit(elsewhere, 5));
  CHECK(says(elsewhere[0].err, "TORCHELASTIC_RUN_ID"));
  // As if not started by a launcher, the process starts two processes itself.
  const auto own =
      run_ranks({.count = 2, .folder = folder.path(), .started = {0}},
                probe("fit", 2, 8, {"--trainer.strategy.cluster_environment", "launcher", "--trainer.max_steps", "1"}));
  CHECK(all_exit(own, 0));
  CHECK(says(own[0].err, "rank 0 of 2 (launcher)"));
}

TEST_CASE("ddp: gradients as views of the buckets are the same gradients") {
  const TemporaryFolder plain, views;
  CHECK(same_bits(fit(plain, {}), fit(views, {"--trainer.strategy.gradient_as_bucket_view", "true"})));
}

TEST_CASE("ddp: bucket_cap_mb splits the gradients into buckets, which the checkpoint saves") {
  const TemporaryFolder one, many;
  const auto whole = fit(one, {}), cut = fit(many, {"--trainer.strategy.bucket_cap_mb", "0.0001"});
  CHECK(buckets(whole) == 1);
  CHECK(buckets(cut) > 1);
  CHECK(difference(whole, cut) < 1e-6);
}

TEST_CASE("ddp: compressed gradients lose precision and little else") {
  const TemporaryFolder plain, small;
  const char* kind = GENERATE("fp16", "bf16");
  const auto a = fit(plain, {}), b = fit(small, {"--trainer.strategy.compression", kind});
  CHECK_FALSE(same_bits(a, b));
  CHECK(difference(a, b) < 0.02);
}

TEST_CASE("ddp: auto_micro_batch compresses gradients, and averages them in blocks without a Reducer") {
  const std::vector<std::string> micro{"--trainer.auto_micro_batch", "true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), micro.begin(), micro.end());
    return more;
  };
  const TemporaryFolder plain, whole, cut, small;
  const auto a = fit(plain, {}), b = fit(whole, with({}));
  CHECK(difference(a, b) < 1e-6);
  CHECK_FALSE(says(read_text(b / "state.json"), "\"buckets\""));
  // 26 numbers, which ends blocks inside tensors.
  CHECK(same_bits(b, fit(cut, with({"--trainer.strategy.bucket_cap_mb", "0.0001"}))));
  const char* kind = GENERATE("fp16", "bf16");
  const auto c = fit(small, with({"--trainer.strategy.compression", kind}));
  CHECK_FALSE(same_bits(b, c));
  CHECK(difference(b, c) < 0.02);
}

TEST_CASE("ddp: a parameter without a gradient is named, and allowed if the config says so") {
  const TemporaryFolder folder, found, still;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              probe("fit", 2, 8, {"--model.spare", "true", "--trainer.max_steps", "3"}));
  CHECK(all_exit(runs, 5));
  for (const Finished& run : runs) CHECK(says(run.err, "these got none: spare"));
  fit(found, {"--model.spare", "true", "--trainer.strategy.find_unused_parameters", "true"});
  fit(still, {"--model.spare", "true", "--trainer.strategy.static_graph", "true"});
  CHECK(same_bits(last_checkpoint(found.path()), last_checkpoint(still.path())));
}

TEST_CASE("ddp: buffers are rank 0's before each forward, or each rank's own") {
  const TemporaryFolder shared, own;
  const auto a = fit(shared, {"--model.norm", "true"}),
             b = fit(own, {"--model.norm", "true", "--trainer.strategy.broadcast_buffers", "false"});
  // Batch norm in training uses no running statistics, so weights agree; rank 0 keeps its own statistics either way.
  CHECK(same_bits(a, b));
  // What rank 1 evaluates with is its own without it.
  const auto rows = [](const TemporaryFolder& folder) {
    return read_text(run_folder(folder.path()) / "metrics.jsonl");
  };
  REQUIRE(says(rows(shared), "val_loss"));
  CHECK_FALSE(rows(shared) == rows(own));
}

TEST_CASE("ddp: memory_format: channels_last on 2 ranks gives the weights of one process in the usual format") {
  const TemporaryFolder one, two, views;
  const std::vector<std::string> last{"--model",       "ProbeImages",         "--trainer.memory_format",
                                      "channels_last", "--trainer.max_steps", "20"};
  const Finished alone = trainer(probe("fit", 1, 8, {"--model", "ProbeImages", "--trainer.max_steps", "20"}),
                                 {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  REQUIRE(alone.exit_code == 0);
  CHECK(says(alone.err, "the batch is contiguous, the weight contiguous"));
  const auto runs = run_ranks({.count = 2, .folder = two.path()}, probe("fit", 2, 8, last));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "the batch is channels last, the weight channels last"));
  CHECK(says(runs[0].err, "the gradient is channels last"));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(two.path())) < 1e-6);
  auto as_views = last;
  as_views.insert(as_views.end(), {"--trainer.strategy.gradient_as_bucket_view", "true"});
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = views.path()}, probe("fit", 2, 8, as_views)), 0));
  CHECK(same_bits(last_checkpoint(two.path()), last_checkpoint(views.path())));
}

TEST_CASE("ddp: peak memory is reported for each rank, throughput for all of them") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              probe("fit", 2, 8,
                                    {"--trainer.max_steps", "20", "--trainer.callbacks+=ThroughputMonitor",
                                     "--trainer.callbacks.window_size", "5", "--report", "report.json"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "peak memory: cpu "));
  CHECK((says(runs[0].err, "resident (rank 0)") || says(runs[0].err, "resident (rank 1)")));
  const auto report = nlohmann::json::parse(read_text(folder / "report.json"));
  REQUIRE(report["peak_memory"].size() == 2);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(report["peak_memory"][static_cast<size_t>(rank)]["rank"] == rank);
    CHECK(report["peak_memory"][static_cast<size_t>(rank)]["bytes"].get<int64_t>() > 10 << 20);
  }
  // Ranks run in lockstep, so all of them do twice what one does.
  const auto& metrics = report["metrics"];
  for (const char* name : {"batches_per_sec", "samples_per_sec"}) {
    const double own = metrics[std::string("device/") + name].get<double>(),
                 all = metrics[std::string("global/") + name].get<double>();
    CHECK(own > 0);
    CHECK(all > 1.3 * own);
    CHECK(all < 3 * own);
  }
  CHECK(metrics["data_wait_share"].get<double>() < 1);
}

TEST_CASE(
    "ddp: the timeline of the Reducer as a Chrome trace of each rank: gradients are on their way before backward has "
    "ended") {
  const TemporaryFolder folder;
  fit(folder, {"--trainer.profiler", "kineto", "--trainer.profiler.wait", "3", "--trainer.profiler.active", "2",
               "--trainer.strategy.bucket_cap_mb", "0.00005"});
  const std::filesystem::path run = last_checkpoint(folder.path()).parent_path().parent_path();
  for (const char* name : {"trace_rank0_cycle0.json", "trace_rank1_cycle0.json"}) {
    CAPTURE(name);
    const auto trace = nlohmann::json::parse(read_text(run / name));
    double first_exchange = 1e300, last_backward = 0;
    int64_t exchanges = 0;
    for (const auto& event : trace.at("traceEvents")) {
      const std::string what = event.value("name", "");
      if (event.value("ph", "") != "X") continue;
      const double start = event.at("ts").get<double>();
      if (what == "gloo:all_reduce") {
        ++exchanges;
        first_exchange = std::min(first_exchange, start);
      }
      if (what.starts_with("autograd::engine::evaluate_function"))
        last_backward = std::max(last_backward, start + event.at("dur").get<double>());
    }
    CHECK(exchanges >= 4);  // several buckets in each of two steps
    CHECK(first_exchange < last_backward);
  }
}

TEST_CASE("ddp: --profile says that a run waits for a slow rank, and leaves nothing behind") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              probe("fit", 2, 8, {"--profile", "6", "--model.trouble", "slow"}));
  REQUIRE(all_exit(runs, 0));
  INFO(runs[0].err);
  CHECK(says(runs[0].err, "profile of 6 training batches"));
  CHECK(says(runs[0].err, "bound by: exchange"));
  CHECK(says(runs[0].err, "exchange: backward waits for other ranks"));
  CHECK(says(runs[0].err, "compression: bf16"));
  CHECK(says(runs[0].err, "gradient_exchange"));
  CHECK_FALSE(says(runs[1].err, "bound by"));
  CHECK_FALSE(std::filesystem::exists(folder / "fulgur_logs"));
}

TEST_CASE("ddp: the profile has the wait for other ranks, which is inside backward") {
  const TemporaryFolder folder;
  const auto checkpoint = fit(folder, {"--trainer.profiler", "simple", "--model.trouble", "slow"});
  const auto profile = nlohmann::json::parse(read_text(checkpoint.parent_path().parent_path() / "profile.json"));
  double exchange = -1, backward = -1;
  for (const auto& action : profile.at("actions")) {
    if (action.at("action") == "gradient_exchange") {
      exchange = action.at("host_s").get<double>();
      CHECK(action.at("calls") == 20);
    }
    if (action.at("action") == "backward") backward = action.at("host_s").get<double>();
  }
  CHECK(exchange > 20 * 0.01);  // the other rank is 20 ms later in each of 20 steps
  CHECK(exchange <= backward);
}

}  // namespace ddp_options_test
