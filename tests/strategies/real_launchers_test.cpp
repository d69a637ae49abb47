// Places as the real launchers of this machine give them.
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "fulgur/core/text/text.h"
#include "support/localhost.h"
#include "support/temporary_folder.h"

namespace real_launchers_test {

namespace {

using fulgur::cat;

struct Output {
  int code = -1;
  std::vector<std::string> lines;  ///< of stdout that the probe wrote, sorted
  std::string all;                 ///< of both streams
};

/// Runs a shell command; none of the variables by which processes are placed is set.
Output run(const std::string& command) {
  Output out;
  const std::string clean =
      "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FULGUR_LAUNCHER; " + command;
  FILE* pipe = ::popen(cat("{ ", clean, "; } 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.all.append(buffer, count);
  const int status = ::pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  static const std::regex kLine("(none|[a-z]+ rank [^\n]* restarts [0-9]+)\n");
  for (std::sregex_iterator it(out.all.begin(), out.all.end(), kLine), end; it != end; ++it)
    out.lines.push_back((*it)[1]);
  std::sort(out.lines.begin(), out.lines.end());
  return out;
}

/// Skips, or fails if the machine must have `tool` (FULGUR_REQUIRE_LAUNCHERS, as continuous integration sets it).
void missing(const std::string& tool, const std::string& reason) {
  const char* required = std::getenv("FULGUR_REQUIRE_LAUNCHERS");
  if (required && std::string(required).find(tool) != std::string::npos) FAIL(tool << " is required: " << reason);
  SKIP(reason);
}

std::string port_of(const std::string& line) {
  std::smatch match;
  REQUIRE(std::regex_search(line, match, std::regex(":([0-9]+) ")));
  return match[1];
}

}  // namespace

TEST_CASE("mpirun: places of its processes") {
  if (std::system("command -v mpirun >/dev/null") != 0)
    missing("mpirun", "mpirun is not installed (package openmpi-bin)");
  const Output out = run("mpirun --allow-run-as-root --oversubscribe -np 4 " FULGUR_CLUSTER_PROBE);
  INFO(out.all);
  REQUIRE(out.code == 0);
  REQUIRE(out.lines.size() == 4);
  const std::string port = port_of(out.lines[0]);
  CHECK(std::stoi(port) >= 20000);
  CHECK(std::stoi(port) <= 29999);
  for (int rank = 0; rank < 4; ++rank)
    CHECK(out.lines[static_cast<size_t>(rank)] ==
          cat("mpi rank ", rank, "/4 local ", rank, "/4 node 0/1 at 127.0.0.1:", port, " restarts 0"));
  const Output said =
      run("mpirun --allow-run-as-root --oversubscribe -np 2 -x MASTER_PORT=4567 -x "
          "MASTER_ADDR=localhost " FULGUR_CLUSTER_PROBE);
  INFO(said.all);
  REQUIRE(said.lines.size() == 2);
  CHECK(said.lines[1] == "mpi rank 1/2 local 1/2 node 0/1 at localhost:4567 restarts 0");
}

TEST_CASE("torchrun: places of its processes") {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (!python) missing("torchrun", "no Python with torch (FULGUR_TEST_PYTHON)");
  if (!fulgur::test::localhost_resolves())
    missing("torchrun", "torchrun wants the name localhost, which has no address here (is there /etc/hosts?)");
  const std::string torchrun = cat("OMP_NUM_THREADS=1 '", python, "' -m torch.distributed.run --no-python ");
  const Output out = run(torchrun + "--standalone --nproc-per-node 2 " FULGUR_CLUSTER_PROBE);
  INFO(out.all);
  REQUIRE(out.code == 0);
  REQUIRE(out.lines.size() == 2);
  for (size_t rank = 0; rank < 2; ++rank)
    CHECK(out.lines[rank].starts_with(cat("torchrun rank ", rank, "/2 local ", rank, "/2 node 0/1 at ")));
  CHECK(port_of(out.lines[0]) == port_of(out.lines[1]));
}

TEST_CASE("srun: places of its tasks, and of processes that are not tasks") {
  const fulgur::test::TemporaryFolder folder;
  // A step, a step in a shell of salloc, a batch script, and a step in that.
  fulgur::test::write_text(folder / "all.sh",
                           "set -e\n"
                           "echo step; srun -Q -n 3 " FULGUR_CLUSTER_PROBE
                           "\n"
                           "echo salloc; salloc -Q -n 2 sh -c '" FULGUR_CLUSTER_PROBE "; srun -Q " FULGUR_CLUSTER_PROBE
                           "'\n"
                           "sbatch -Q -W -n 4 -o batch --wrap '" FULGUR_CLUSTER_PROBE
                           "; srun -Q -n 2 " FULGUR_CLUSTER_PROBE
                           "' >/dev/null\n"
                           "echo batch; cat batch\n");
  const Output out = run(cat("cd '", folder.path(), "' && " FULGUR_SLURM_ONE_NODE " sh all.sh"));
  INFO(out.all);
  if (out.code == 77) missing("slurm", out.all);
  REQUIRE(out.code == 0);
  const auto part = [&](const std::string& from, const std::string& to) {
    const size_t begin = out.all.find(from + "\n"), end = to.empty() ? out.all.size() : out.all.find(to + "\n");
    const std::string text = out.all.substr(begin + from.size() + 1, end - begin - from.size() - 1);
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      lines.push_back(text.substr(at, text.find('\n', at) - at));
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  const auto tasks = [](const std::vector<std::string>& lines, int count) {
    for (int rank = 0; rank < count; ++rank) {
      INFO("rank " << rank);
      CHECK(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
              return std::regex_match(line, std::regex(cat("slurm rank ", rank, "/", count, " local ", rank, "/", count,
                                                           " node 0/1 at 127\\.0\\.0\\.1:15[0-9]{3} restarts 0")));
            }) == 1);
    }
  };
  const auto step = part("step", "salloc"), shell = part("salloc", "batch"), batch = part("batch", "");
  CHECK(step.size() == 3);
  tasks(step, 3);
  CHECK(shell.size() == 3);
  CHECK(shell.front() == "none");
  tasks(shell, 2);
  CHECK(batch.size() == 3);
  CHECK(batch.front() == "none");
  tasks(batch, 2);
}

}  // namespace real_launchers_test
