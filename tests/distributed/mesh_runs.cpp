#include "mesh_runs.h"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::test {
namespace fs = std::filesystem;

std::vector<Finished> fit_mesh(const fs::path& folder, const Mesh& mesh, const Arguments& more) {
  Arguments arguments = probe("fit", mesh.ranks(), 8 * mesh.ranks(), more);
  for (auto& argument : arguments)
    if (argument == "ddp") argument = "mesh";
  const Arguments stages = mesh.pipeline == 1 ? Arguments{}
                                              : Arguments{"--trainer.strategy.schedule", mesh.schedule,
                                                          "--trainer.strategy.micro_batches", mesh.micro_batches};
  return run_ranks(
      {.count = mesh.ranks(), .folder = folder},
      arguments +
          Arguments{"--trainer.strategy.mesh.pipeline", std::to_string(mesh.pipeline), "--trainer.strategy.mesh.tensor",
                    std::to_string(mesh.tensor), "--data.batch_size", std::to_string(8 / mesh.shares()),
                    "--trainer.strategy.mesh.shard", std::to_string(mesh.shard)} +
          stages + mesh.more);
}

void interrupt_mesh(const fs::path& folder, const Mesh& mesh, const Arguments& more, const std::string& step) {
  REQUIRE(all_exit(
      fit_mesh(folder, mesh,
               more + Arguments{"--trainer.agree_every", "1", "--trainer.callbacks+=ProbeCallback",
                                "--trainer.callbacks.signal_rank", "1", "--trainer.callbacks.signal_step", step}),
      75));
}

std::vector<Finished> fit_alone(const fs::path& folder, const Arguments& more) {
  return {trainer(probe("fit", 1, 8, more), {.folder = folder, .environment = {"OMP_NUM_THREADS=1"}})};
}

fs::path trained_mesh(const TemporaryFolder& folder, const Mesh& mesh, const Arguments& more) {
  REQUIRE(all_exit(fit_mesh(folder.path(), mesh, more), 0));
  return last_checkpoint(folder.path());
}

fs::path trained_alone(const TemporaryFolder& folder, const Arguments& more) {
  REQUIRE(all_exit(fit_alone(folder.path(), more), 0));
  return last_checkpoint(folder.path());
}

std::vector<Mesh> meshes_of(int ranks) {
  std::vector<Mesh> meshes;
  for (int pipeline = 1; pipeline <= ranks; pipeline *= 2)
    for (int tensor = 1; pipeline * tensor <= ranks; tensor *= 2)
      for (int shard = 1; pipeline * tensor * shard <= ranks; shard *= 2) {
        const int data = ranks / (pipeline * tensor * shard);
        meshes.push_back({.data = data,
                          .pipeline = pipeline,
                          .micro_batches = std::to_string(std::min(4, 8 / (data * shard))),
                          .tensor = tensor,
                          .shard = shard});
      }
  return meshes;
}

bool same_states(const fs::path& a, const fs::path& b) {
  const auto first = fulgur::read_safetensors(a / "optimizer.safetensors").tensors,
             second = fulgur::read_safetensors(b / "optimizer.safetensors").tensors;
  return std::ranges::equal(first, second, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.sizes() == y.second.sizes() && x.second.equal(y.second);
  });
}

std::vector<double> column(const fs::path& root, const std::string& name) {
  std::ifstream file(run_folder(root) / "metrics.csv");
  std::string line;
  std::getline(file, line);
  const auto names = fulgur::split_text(line, ',');
  const auto index = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
  CAPTURE(line);
  REQUIRE(index < names.size());
  std::vector<double> values;
  while (std::getline(file, line))
    if (const auto cells = fulgur::split_text(line, ','); index < cells.size() && !cells[index].empty())
      values.push_back(std::stod(cells[index]));
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE_FALSE(a.empty());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// With a larger learning rate, Adam makes steps of full length of differences in the last bit of a small gradient. An
// epoch has more than 100 steps: its last batch is divided among shares of the data differently.
Arguments mesh_gpt(const TemporaryFolder& folder, const Arguments& more) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>('a' + i * i % 17 * i % 11);
  write_text(folder / "text.txt", text);
  return Arguments{"--optimizer", "AdamW", "--optimizer.lr", "0.001"} +
         Arguments{"--model",
                   "ProbeGpt",
                   "--model.vocab_size",
                   "11",
                   "--model.block_size",
                   "16",
                   "--model.n_layer",
                   "6",
                   "--model.n_head",
                   "2",
                   "--model.n_embd",
                   "16",
                   "--data",
                   "TextDataModule",
                   "--data.path",
                   (folder / "text.txt").string(),
                   "--data.block_size",
                   "16",
                   "--data.batch_size",
                   "8",
                   "--trainer.log_every_n_steps",
                   "1"} +
         more;
}

std::vector<std::string> lines_of(const fs::path& root, const std::vector<Finished>& runs, size_t rank,
                                  const std::string& mark) {
  const std::string text =
      rank == 0 ? runs[0].err : read_text(run_folder(root) / ("rank_" + std::to_string(rank) + ".log"));
  std::vector<std::string> found;
  for (const auto& line : fulgur::split_text(text, '\n'))
    if (const auto at = line.find(mark); at != line.npos) found.push_back(line.substr(at + mark.size()));
  return found;
}

}  // namespace fulgur::test
