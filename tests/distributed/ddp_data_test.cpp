#include "ranks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "fulgur/checkpoint/safetensors.h"

namespace ddp_data_test {

using namespace fulgur::test;
using fulgur::Tensor;

namespace {

// Of one process: the weights that all evaluations here use.
std::filesystem::path trained(const TemporaryFolder& folder) {
  const Finished run = trainer(probe("fit", 1, 8, {"--trainer.max_steps", "10", "--trainer.precision", "64-true"}),
                               {.folder = folder.path()});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  return std::filesystem::canonical(last_checkpoint(folder.path()));
}

std::vector<Finished> start(const std::string& verb, int world, const TemporaryFolder& folder,
                            std::vector<std::string> more) {
  more.insert(more.end(), {"--trainer.precision", "64-true"});
  if (world == 1) return {trainer(probe(verb, 1, 8, more), {.folder = folder.path()})};
  return run_ranks({.count = world, .folder = folder.path()}, probe(verb, world, 8 * world, more));
}

}  // namespace

TEST_CASE("F26: a test of uneven data is exact to the last sample, for any number of ranks") {
  const int samples = GENERATE(257, 32, 3);
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  double one = 0;
  for (const int world : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    const auto runs = start("test", world, folder,
                            {"--ckpt_path", checkpoint.string(), "--data.num_eval", std::to_string(samples), "--report",
                             (folder / "report.json").string()});
    REQUIRE(all_exit(runs, 0));
    const auto report = nlohmann::json::parse(read_text(folder / "report.json"));
    INFO(report.dump());
    const double loss = report["loaders"][0]["test_loss"];
    if (world == 1) one = loss;
    CHECK(loss == Catch::Approx(one).epsilon(1e-12).margin(0));
    CHECK(report["samples"] == samples);
  }
}

TEST_CASE("F26: a metric object has the same value to the bit for any number of ranks") {
  const int samples = GENERATE(67, 2);  // with 2 samples, the third rank has no batch
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  double one = -1;
  for (const int world : {1, 2, 3}) {
    const TemporaryFolder folder;
    const auto runs = start("validate", world, folder,
                            {"--ckpt_path", checkpoint.string(), "--model.logs_metric", "true", "--data.num_eval",
                             std::to_string(samples), "--report", (folder / "report.json").string()});
    REQUIRE(all_exit(runs, 0));
    const auto report = nlohmann::json::parse(read_text(folder / "report.json"));
    INFO(report.dump());
    const double accuracy = report["loaders"][0]["val_acc"];
    if (world == 1) one = accuracy;
    CHECK(accuracy == one);
  }
  CHECK(one >= 0);
}

TEST_CASE("F26: predictions come in the order of the data set, from any number of ranks") {
  const int samples = GENERATE(67, 3);
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  std::string one;
  for (const int world : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    REQUIRE(all_exit(start("predict", world, folder,
                           {"--ckpt_path", checkpoint.string(), "--data.num_eval", std::to_string(samples),
                            "--data.batch_size", "4"}),
                     0));
    const std::string lines = read_text(run_folder(folder.path()) / "predictions.jsonl");
    if (world == 1) one = lines;
    REQUIRE_FALSE(lines.empty());
    // The last bit may be another one: a kernel may add in another order for another place or number of rows.
    std::istringstream here(lines), there(one);
    std::string a, b;
    for (int i = 0; i < samples; ++i) {
      REQUIRE(std::getline(here, a));
      REQUIRE(std::getline(there, b));
      const auto x = nlohmann::json::parse(a), y = nlohmann::json::parse(b);
      CHECK(x["index"] == i);
      CHECK(x["out"][0].get<double>() == Catch::Approx(y["out"][0].get<double>()).epsilon(1e-12).margin(1e-15));
    }
    CHECK_FALSE(std::getline(here, a));
  }
}

TEST_CASE("F26: prediction files of several ranks are those of one process to the byte") {
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  std::string one;
  for (const int world : {1, 2, 3}) {
    const TemporaryFolder folder;
    // Batches of one sample: the bits of a kernel may depend on the number of rows.
    REQUIRE(all_exit(start("predict", world, folder,
                           {"--ckpt_path", checkpoint.string(), "--data.num_eval", "13", "--data.batch_size", "1"}),
                     0));
    const std::filesystem::path run = run_folder(folder.path());
    const std::string files = read_text(run / "predictions.safetensors") + read_text(run / "predictions.jsonl");
    if (world == 1) one = files;
    CHECK(files == one);
    for (const auto& file : std::filesystem::directory_iterator(run)) CHECK(file.path().extension() != ".tmp");
  }
}

TEST_CASE("F26: PredictionWriter: the files of all ranks have each sample once, with its index") {
  const std::string interval = GENERATE("batch", "epoch");
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  for (const int world : {1, 2, 3}) {
    CAPTURE(interval, world);
    const TemporaryFolder folder;
    REQUIRE(all_exit(start("predict", world, folder,
                           {"--ckpt_path", checkpoint.string(), "--data.num_eval", "13", "--data.batch_size", "4",
                            "--trainer.callbacks+=PredictionWriter", "--trainer.callbacks.write_interval", interval}),
                     0));
    std::vector<int64_t> indices;
    int64_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(run_folder(folder.path()) / "predictions")) {
      ++files;
      std::map<std::string, Tensor> tensors;
      for (const auto& [name, value] : fulgur::read_safetensors(file.path()).tensors) tensors[name] = value;
      REQUIRE(tensors.size() == 3);
      CHECK(tensors.at("index").flatten().equal(tensors.at("sample_index")));
      CHECK(tensors.at("out").size(0) == tensors.at("sample_index").size(0));
      const auto* const own = tensors.at("sample_index").const_data_ptr<int64_t>();
      indices.insert(indices.end(), own, own + tensors.at("sample_index").numel());
    }
    std::sort(indices.begin(), indices.end());
    std::vector<int64_t> all(13);
    std::iota(all.begin(), all.end(), 0);
    CHECK(indices == all);
    // Ranks have 13, 7 and 6, or 5, 4 and 4 samples, in batches of 4.
    CHECK(files == (interval == "epoch" ? world : 4));
    CHECK_FALSE(std::filesystem::exists(run_folder(folder.path()) / "predictions.safetensors"));
  }
}

TEST_CASE("F26: a rank that fails in predict, or rank 0 that cannot write, ends the others and leaves no file") {
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  const TemporaryFolder folder;
  const auto predict = [&](const std::string& trouble, const std::string& rank) {
    return start("predict", 3, folder,
                 {"--ckpt_path", checkpoint.string(), "--data.num_eval", "13", "--data.batch_size", "4",
                  "--model.trouble", trouble, "--model.trouble_rank", rank});
  };
  const std::string trouble = GENERATE("throw_in_predict", "predictions_in_the_way", "other_predictions");
  const std::string rank = trouble == "predictions_in_the_way" ? "0" : "2";
  const auto runs = predict(trouble, rank);
  for (const Finished& run : runs) {
    INFO(run.err);
    CHECK(run.exit_code != 0);
    if (trouble == "other_predictions") CHECK(says(run.err, "every rank must return the same outputs; rank 2 has"));
  }
  if (trouble == "predictions_in_the_way") CHECK(says(runs[0].err, "could not be written"));
  for (const auto& file : std::filesystem::directory_iterator(run_folder(folder.path())))
    CHECK((file.is_directory() || !says(file.path().filename().string(), "predictions")));
}

TEST_CASE("F26: predictions of ranks that each read all samples come rank by rank, whatever their numbers say") {
  const TemporaryFolder weights, folder;
  const auto checkpoint = trained(weights);
  REQUIRE(all_exit(start("predict", 2, folder,
                         {"--ckpt_path", checkpoint.string(), "--data.num_eval", "6", "--data.batch_size", "4",
                          "--data.selfish", "true", "--trainer.use_distributed_sampler", "false"}),
                   0));
  std::istringstream lines(read_text(run_folder(folder.path()) / "predictions.jsonl"));
  std::vector<int64_t> indices;
  for (std::string line; std::getline(lines, line);) indices.push_back(nlohmann::json::parse(line)["index"]);
  CHECK(indices == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("F26: predictions of a batch sampler or a stream that shares out itself come rank by rank") {
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  const std::string eval = GENERATE("batches_of_blocks", "stream_of_blocks", "batches_in_turns");
  // Blocks of equal size look like shares that are dealt in turns.
  const int samples = GENERATE(8, 9);
  CAPTURE(eval, samples);
  const TemporaryFolder folder;
  REQUIRE(all_exit(start("predict", 2, folder,
                         {"--ckpt_path", checkpoint.string(), "--data.num_eval", std::to_string(samples),
                          "--data.batch_size", "2", "--data.eval", eval}),
                   0));
  std::istringstream lines(read_text(run_folder(folder.path()) / "predictions.jsonl"));
  std::vector<int64_t> indices, expected{0, 1, 2, 3, 4, 5, 6, 7};
  for (std::string line; std::getline(lines, line);) indices.push_back(nlohmann::json::parse(line)["index"]);
  // Blocks one after another are the order of the data set; batches in turns are not.
  if (samples == 9) expected.push_back(8);
  if (eval == "batches_in_turns")
    expected =
        samples == 9 ? std::vector<int64_t>{0, 1, 4, 5, 8, 2, 3, 6, 7} : std::vector<int64_t>{0, 1, 4, 5, 2, 3, 6, 7};
  CHECK(indices == expected);
}

TEST_CASE("ddp: SIGTERM to one rank in validate, test or predict ends every rank at once with 143") {
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  const std::string verb = GENERATE("validate", "test", "predict");
  const std::string rank = GENERATE("0", "1");
  // Of known length, where the ranks have 63 and 62 batches, and of unknown length.
  const std::string eval = GENERATE("set", "stream_of_blocks");
  CAPTURE(verb, rank, eval);
  const TemporaryFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto runs =
      start(verb, 2, folder,
            {"--ckpt_path", checkpoint.string(), "--data.num_eval", "249", "--data.batch_size", "2", "--data.eval",
             eval, "--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", rank,
             "--trainer.callbacks.signal_place", "evaluation_batch", "--trainer.callbacks.eval_sleep_ms", "200"});
  CHECK(all_exit(runs, 143));
  // All batches take 12 s, the time-out of an exchange 20.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  if (verb != "predict") return;
  for (const auto& file : std::filesystem::directory_iterator(run_folder(folder.path())))
    CHECK_FALSE(says(file.path().filename().string(), "predictions"));
}

TEST_CASE("ddp: SIGTERM to one rank inside a validation of a fit abandons it, and a resume repeats it") {
  const std::string rank = GENERATE("0", "1");
  const std::string eval = GENERATE("set", "stream_of_blocks");
  CAPTURE(rank, eval);
  const TemporaryFolder folder;
  const std::vector<std::string> options{"--trainer.max_steps",
                                         "4",
                                         "--trainer.num_sanity_val_steps",
                                         "0",
                                         "--trainer.log_every_n_steps",
                                         "1",
                                         "--data.num_train",
                                         "64",
                                         "--data.num_eval",
                                         "249",
                                         "--data.batch_size",
                                         "2",
                                         "--data.eval",
                                         eval,
                                         "--trainer.val_check_interval",
                                         "4"};
  std::vector<std::string> stopped = options;
  stopped.insert(stopped.end(),
                 {"--trainer.callbacks+=ProbeCallback", "--trainer.callbacks.signal_rank", rank,
                  "--trainer.callbacks.signal_place", "evaluation_batch", "--trainer.callbacks.eval_sleep_ms", "200"});
  const auto begin = std::chrono::steady_clock::now();
  CHECK(all_exit(start("fit", 2, folder, stopped), 75));
  // All batches take 12 s.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK_FALSE(says(read_text(run_folder(folder.path()) / "metrics.csv"), "val_loss"));
  std::vector<std::string> resumed = options;
  resumed.emplace_back("--resume");
  REQUIRE(all_exit(start("fit", 2, folder, resumed), 0));
  CHECK(says(read_text(run_folder(folder.path()) / "metrics.csv"), "val_loss"));
}

TEST_CASE("ddp: ranks whose evaluations have different numbers of batches, or none, all end normally") {
  const TemporaryFolder weights;
  const auto checkpoint = trained(weights);
  const std::string eval = GENERATE("stream_of_blocks", "batches_of_blocks");
  const int samples = GENERATE(1, 13);
  CAPTURE(eval, samples);
  const TemporaryFolder folder;
  const auto runs = start("test", 3, folder,
                          {"--ckpt_path", checkpoint.string(), "--data.num_eval", std::to_string(samples),
                           "--data.batch_size", "2", "--data.eval", eval, "--report", (folder / "r.json").string()});
  REQUIRE(all_exit(runs, 0));
  const auto report = nlohmann::json::parse(read_text(folder / "r.json"));
  CHECK(report["samples"] == samples);
  CHECK(report["seconds"].get<double>() > 0);
}

TEST_CASE("F26: training data that does not divide ends on all ranks at the same step") {
  const int world = GENERATE(2, 3);
  const int samples = GENERATE(67, 49, 2);
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = world, .folder = folder.path()},
                              probe("fit", world, 8 * world,
                                    {"--data.num_train", std::to_string(samples), "--trainer.max_epochs", "3",
                                     "--trainer.strategy.check_replicas_every", "1"}));
  CHECK(all_exit(runs, 0));
  const int per_rank = (samples + world - 1) / world;
  CHECK(says(runs[0].err, std::to_string(3 * ((per_rank + 7) / 8)) + " steps"));
}

TEST_CASE("F26: uneven_shares: the remainder is dropped, or an error before the first step") {
  const TemporaryFolder folder;
  const auto fit = [&](const char* rest) {
    return run_ranks(
        {.count = 2, .folder = folder.path()},
        probe("fit", 2, 2, {"--data.num_train", "9", "--trainer.max_epochs", "2", "--trainer.uneven_shares", rest}));
  };
  const auto padded = fit("pad"), dropped = fit("drop"), refused = fit("error");
  CHECK(all_exit(padded, 0));
  CHECK(says(padded[0].err, "2 epochs, 10 steps"));
  CHECK(all_exit(dropped, 0));
  CHECK(says(dropped[0].err, "2 epochs, 8 steps"));
  CHECK(refused[0].exit_code == 3);
  CHECK(says(refused[0].err, "cannot be divided evenly among 2 processes"));
}

TEST_CASE("F26: streams of different lengths end with the shortest") {
  const TemporaryFolder folder;
  const auto runs =
      run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 16,
                                                             {"--data.stream", "[32, 20]", "--trainer.max_epochs", "2",
                                                              "--trainer.strategy.check_replicas_every", "1"}));
  CHECK(all_exit(runs, 0));
  // Batches of 8: four on rank 0, three on rank 1, the last of four samples.
  CHECK(says(runs[0].err, "2 epochs, 6 steps"));
}

TEST_CASE("ddp: a sampler that ignores ranks is refused, or is the user's responsibility") {
  const TemporaryFolder folder, own;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()},
                              probe("fit", 2, 16, {"--data.selfish", "true", "--trainer.max_epochs", "1"}));
  CHECK(all_exit(runs, 3));
  CHECK(says(runs[0].err, "must divide its 32 samples among 2 processes; all shares together have 64"));
  const auto whole = run_ranks(
      {.count = 2, .folder = own.path()},
      probe("fit", 2, 16,
            {"--data.selfish", "true", "--trainer.max_epochs", "1", "--trainer.use_distributed_sampler", "false"}));
  CHECK(all_exit(whole, 0));
  CHECK(says(whole[0].err, "8 steps"));
}

TEST_CASE("ddp: prepare_data runs in the first process of a node only") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path()}, probe("fit", 2, 16, {"--trainer.max_steps", "1"}));
  REQUIRE(all_exit(runs, 0));
  CHECK(says(runs[0].err, "prepare_data was called"));
  CHECK_FALSE(says(read_text(run_folder(folder.path()) / "rank_1.log"), "prepare_data was called"));
}

TEST_CASE("ddp: with a link, each process prepares the data, one after another, and sets it up once, after its state") {
  const TemporaryFolder folder;
  write_text(folder / "link.yaml", "link: {model.hidden: data.width}\n");
  const auto fit = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"-c", "link.yaml", "--data.slow", "true"});
    const auto runs = run_ranks({.count = 3, .folder = folder.path()}, probe("fit", 3, 24, more));
    REQUIRE(all_exit(runs, 0));
    return runs[0].err;
  };
  const auto count = [](const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string first = fit({"--trainer.max_steps", "1"});
  CHECK(count(first, "setup was called") == 1);
  CHECK_FALSE(says(first, "load_state"));
  const std::string resumed = fit({"--trainer.max_steps", "2", "--resume"});
  CHECK(count(resumed, "setup was called") == 1);
  CHECK(says(resumed, "load_state before setup"));
  CHECK_FALSE(says(resumed, "load_state after setup"));
}

TEST_CASE("ddp: a batch size that grows gives the run of one process; a resumed run has the same bits") {
  const std::string by = GENERATE("batch", "accumulation");
  CAPTURE(by);
  // Epochs of 64 samples: eight steps of 8, four of 16, two of 32.
  const auto growing = [&](int world, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{"--trainer.max_epochs",
                                 "3",
                                 "--trainer.callbacks+=BatchSizeScheduler",
                                 "--trainer.callbacks.every",
                                 "1ep",
                                 "--trainer.callbacks.max",
                                 std::to_string(32 / world),
                                 "--trainer.callbacks.by",
                                 by};
    all.insert(all.end(), more.begin(), more.end());
    return probe("fit", world, 8, all);
  };
  const TemporaryFolder one, whole, parts;
  const Finished alone = trainer(growing(1), {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  CHECK(std::filesystem::canonical(last_checkpoint(one.path())).string().find("step=14") != std::string::npos);
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = whole.path()}, growing(2)), 0));
  CHECK(std::filesystem::canonical(last_checkpoint(whole.path())).string().find("step=14") != std::string::npos);
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(whole.path())) < 1e-6);
  // The first part ends inside the second epoch.
  const std::vector<std::string> first{"--trainer.max_steps", "10"}, rest{"--resume", "--allow-config-change"};
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = parts.path()}, growing(2, first)), 0));
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = parts.path()}, growing(2, rest)), 0));
  CHECK(same_bits(last_checkpoint(whole.path()), last_checkpoint(parts.path())));
  if (by != "batch") return;
  // One process continues the second epoch with the batches of both, although the size of one rank occurs in its plan.
  const TemporaryFolder elastic;
  REQUIRE(all_exit(run_ranks({.count = 2, .folder = elastic.path()}, growing(2, first)), 0));
  const Finished last = trainer(growing(1, rest), {.folder = elastic.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(last.err);
  REQUIRE(last.exit_code == 0);
  CHECK(std::filesystem::canonical(last_checkpoint(elastic.path())).string().find("step=14") != std::string::npos);
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(elastic.path())) < 1e-6);
}

TEST_CASE("ddp: tune lr follows the mean loss of all ranks, and tune batch_size finds the size of a rank's share") {
  const TemporaryFolder folder;
  const auto tune = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"tune"};
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"--model",
                           "MlpClassifier",
                           "--model.in_features",
                           "4",
                           "--model.num_classes",
                           "3",
                           "--data",
                           "SyntheticDataModule",
                           "--data.num_classes",
                           "3",
                           "--data.shape",
                           "[4]",
                           "--data.num_train",
                           "64",
                           "--data.num_val",
                           "16",
                           "--optimizer",
                           "SGD",
                           "--optimizer.lr",
                           "0.1",
                           "--seed_everything",
                           "1",
                           "--trainer.accelerator",
                           "cpu",
                           "--trainer.strategy",
                           "ddp",
                           "--trainer.devices",
                           "2",
                           "--trainer.num_threads",
                           "1"});
    return trainer(all, {.folder = folder.path()});
  };
  const Finished sizes = tune({"batch_size", "--data.batch_size", "8"});
  INFO(sizes.out << sizes.err);
  REQUIRE(sizes.exit_code == 0);
  CHECK(says(sizes.out, "suggested batch size: 32 (the data has no batch of 64 samples)"));
  CHECK(says(sizes.out, "--optimizer.lr=0.4"));
  const Finished rates = tune({"lr", "--steps", "40", "--data.batch_size", "4", "--output", "two"});
  INFO(rates.out << rates.err);
  REQUIRE(rates.exit_code == 0);
  CHECK(says(rates.out, "learning rate"));
  CHECK(says(read_text(folder / "two.csv"), "\n20,"));
  CHECK_FALSE(std::filesystem::exists(folder / "fulgur_logs"));
}

}  // namespace ddp_data_test
