#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/process.h"
#include "fulgur/core/state/tensor.h"
#include "support/free_port.h"

namespace fulgur::test {

using Arguments = std::vector<std::string>;

/// `a` and then `b`.
inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// How ranks are started.
struct Ranks {
  int count = 2;
  std::filesystem::path folder;                      ///< where they run
  std::vector<std::vector<std::string>> extra = {};  ///< arguments of one rank more, by rank
  std::vector<std::string> environment = {};
  std::vector<int> started = {};  ///< only these; empty: all
  std::string program = {};       ///< empty: the built `trainer`
  int port = 0;                   ///< 0: a free one
};

/// The start of one of `count` ranks in plain variables.
Start start_of_rank(int rank, int count, int port, const std::filesystem::path& folder);

/// Starts the built `trainer` once per rank, with its place in plain variables, with the probe plug-in; waits for all.
std::vector<Finished> run_ranks(const Ranks& ranks, const std::vector<std::string>& arguments);

/// Arguments of a fit of the probe net on the CPU, in ddp if `world` is above one; `more` comes last.
std::vector<std::string> probe(const std::string& verb, int world, int64_t batch_size_of_all,
                               const std::vector<std::string>& more = {});

/// True if all ended with that code; else says which did not, with their stderr.
bool all_exit(const std::vector<Finished>& ranks, int code);

/// The only folder of that kind of run below `root`.
std::filesystem::path run_folder(const std::filesystem::path& root);
std::filesystem::path last_checkpoint(const std::filesystem::path& root);
/// The contents, by name, of the files of metrics and predictions below `root`, of which there must be some.
std::map<std::string, std::string> evaluated_values(const std::filesystem::path& root);
/// The largest difference of two checkpoints' weights; throws if their names differ.
double difference(const std::filesystem::path& a, const std::filesystem::path& b);
/// True if the bits of all weights agree.
bool same_bits(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace fulgur::test
