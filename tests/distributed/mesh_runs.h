#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ranks.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

inline const Arguments kMeshAdam{"--optimizer", "AdamW", "--optimizer.lr", "0.01"};

/// Ranks along the axes, and how they compute a batch of 8 samples.
struct Mesh {
  int data = 1, pipeline = 2;
  std::string schedule = "1f1b";
  std::string micro_batches = "4";
  Arguments more = {};
  int tensor = 1, shard = 1;
  int ranks() const { return data * shard * tensor * pipeline; }
  int shares() const { return data * shard; }
};

/// The ranks run in the folder. Options of an optimizer come first in `more`.
std::vector<Finished> fit_mesh(const std::filesystem::path& folder, const Mesh& mesh, const Arguments& more);
/// Runs until a signal ends it at a step, with a checkpoint.
void interrupt_mesh(const std::filesystem::path& folder, const Mesh& mesh, const Arguments& more,
                    const std::string& step);
std::vector<Finished> fit_alone(const std::filesystem::path& folder, const Arguments& more);
/// The last checkpoint of such a run, which must end well.
std::filesystem::path trained_mesh(const TemporaryFolder& folder, const Mesh& mesh, const Arguments& more);
std::filesystem::path trained_alone(const TemporaryFolder& folder, const Arguments& more);

/// Whether the bits of all optimizer states agree.
bool same_states(const std::filesystem::path& a, const std::filesystem::path& b);
/// Meshes of two and four ranks that divide layers, alone and with another axis.
inline const std::vector<Mesh> kMeshes{{.pipeline = 2},
                                       {.pipeline = 1, .tensor = 2},
                                       {.pipeline = 2, .tensor = 2},
                                       {.pipeline = 2, .shard = 2},
                                       {.pipeline = 1, .tensor = 2, .shard = 2},
                                       {.data = 2, .pipeline = 2},
                                       {.data = 2, .pipeline = 1, .tensor = 2}};

/// All meshes of so many ranks, with equal sizes of micro-batches.
std::vector<Mesh> meshes_of(int ranks);
/// The values of a column of the run's metrics, without empty ones.
std::vector<double> column(const std::filesystem::path& root, const std::string& name);
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);
/// What follows `mark` in the lines that a rank has logged.
std::vector<std::string> lines_of(const std::filesystem::path& root, const std::vector<Finished>& runs, size_t rank,
                                  const std::string& mark);

/// A small GPT on a text in the folder.
Arguments mesh_gpt(const TemporaryFolder& folder, const Arguments& more = {});

}  // namespace fulgur::test
