#include "ranks.h"

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include <catch2/catch_test_macros.hpp>
#include <map>
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/text.h"

namespace fulgur::test {
namespace fs = std::filesystem;

Start start_of_rank(int rank, int count, int port, const fs::path& folder) {
  const std::string number = std::to_string(rank), world = std::to_string(count);
  return {.folder = folder,
          .environment = {"OMP_NUM_THREADS=1", "RANK=" + number, "WORLD_SIZE=" + world, "LOCAL_RANK=" + number,
                          "LOCAL_WORLD_SIZE=" + world, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)}};
}

std::vector<Finished> run_ranks(const Ranks& ranks, const std::vector<std::string>& arguments) {
  const int port = ranks.port > 0 ? ranks.port : free_port();
  std::vector<std::unique_ptr<Running>> running;
  for (int rank = 0; rank < ranks.count; ++rank) {
    if (!ranks.started.empty() && std::find(ranks.started.begin(), ranks.started.end(), rank) == ranks.started.end())
      continue;
    Start start = start_of_rank(rank, ranks.count, port, ranks.folder);
    start.program = ranks.program;
    start.environment.insert(start.environment.end(), ranks.environment.begin(), ranks.environment.end());
    std::vector<std::string> all = arguments;
    if (static_cast<size_t>(rank) < ranks.extra.size())
      all.insert(all.end(), ranks.extra[static_cast<size_t>(rank)].begin(),
                 ranks.extra[static_cast<size_t>(rank)].end());
    running.push_back(std::make_unique<Running>(all, start));
  }
  std::vector<Finished> finished;
  for (auto& rank : running) finished.push_back(rank->wait());
  return finished;
}

namespace {

// Whether the strategy is one with limits for waits; without a name, it is ddp.
bool has_timeouts(const std::vector<std::string>& arguments) {
  const auto last = std::find(arguments.rbegin(), arguments.rend(), "--trainer.strategy");
  if (last == arguments.rend()) return true;
  const std::string& name = *std::prev(last);
  return name == "ddp" || name == "fsdp" || name == "mesh";
}

}  // namespace

std::vector<std::string> probe(const std::string& verb, int world, int64_t batch_size_of_all,
                               const std::vector<std::string>& more) {
  std::vector<std::string> arguments{verb,
                                     "--plugin",
                                     FULGUR_PROBE_PLUGIN,
                                     "--seed_everything",
                                     "3",
                                     "--model",
                                     "ProbeNet",
                                     "--data",
                                     "ProbeData",
                                     "--data.batch_size",
                                     std::to_string(batch_size_of_all / world),
                                     "--optimizer",
                                     "SGD",
                                     "--optimizer.lr",
                                     "0.05",
                                     "--trainer.accelerator",
                                     "cpu",
                                     "--trainer.enable_progress_bar",
                                     "false",
                                     "--trainer.enable_model_summary",
                                     "false",
                                     "--trainer.log_every_n_steps",
                                     "2",
                                     "--trainer.deterministic",
                                     "true"};
  if (world > 1) {
    // Tests of timeouts set a short one. Others must not fail on a machine that is slow for a while.
    arguments.insert(arguments.end(), {"--trainer.strategy", "ddp"});
    if (has_timeouts(more))
      arguments.insert(arguments.end(),
                       {"--trainer.strategy.timeout_s", "300", "--trainer.strategy.start_timeout_s", "300"});
    arguments.insert(arguments.end(), {"--trainer.devices", std::to_string(world)});
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool all_exit(const std::vector<Finished>& ranks, int code) {
  bool good = true;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].exit_code == code) continue;
    good = false;
    UNSCOPED_INFO("rank " << rank << " ended with " << ranks[rank].exit_code << ": " << ranks[rank].err);
  }
  return good;
}

fs::path run_folder(const fs::path& root) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root / "fulgur_logs")) found.push_back(entry.path());
  if (found.size() != 1) throw std::runtime_error("not one run folder in " + root.string());
  return found.front();
}

fs::path last_checkpoint(const fs::path& root) { return run_folder(root) / "checkpoints" / "last.ckpt"; }

namespace {

template <class Function>
void each_pair(const fs::path& a, const fs::path& b, Function function) {
  const auto weights = [](const fs::path& checkpoint) {
    std::map<std::string, Tensor> all;
    for (auto& [name, tensor] : read_checkpoint(checkpoint).module) all.emplace(name, std::move(tensor));
    return all;
  };
  const auto first = weights(a), second = weights(b);
  if (!std::ranges::equal(
          first, second, {}, [](const auto& x) { return x.first; }, [](const auto& x) { return x.first; }))
    throw std::runtime_error("the checkpoints have different tensors");
  for (const auto& [name, tensor] : first) function(tensor, second.at(name));
}

}  // namespace

std::map<std::string, std::string> evaluated_values(const fs::path& root) {
  std::map<std::string, std::string> values;
  for (const auto& file : fs::recursive_directory_iterator(root))
    if (file.path().extension() == ".safetensors" || file.path().filename() == "metrics.jsonl")
      values[file.path().filename().string()] = read_text(file.path());
  CHECK_FALSE(values.empty());
  return values;
}

double difference(const fs::path& a, const fs::path& b) {
  double most = 0;
  each_pair(a, b, [&](const Tensor& x, const Tensor& y) {
    if (x.numel() > 0) most = std::max(most, x.to(at::kDouble).sub(y.to(at::kDouble)).abs().max().item().toDouble());
  });
  return most;
}

bool same_bits(const fs::path& a, const fs::path& b) {
  bool same = true;
  each_pair(a, b, [&](const Tensor& x, const Tensor& y) { same = same && x.equal(y); });
  return same;
}

}  // namespace fulgur::test
