// A node that is lost while a run trains: torchrun in two network namespaces, and the cable between them is cut.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

#include "launchers.h"
#include "ranks.h"
#include "strategies/network_namespaces.h"

namespace lost_node_test {

using namespace fulgur::test;

TEST_CASE(
    "torchrun: a node is lost, and the rest resume by samples at the same global batch, with the weights of a run that "
    "lost none") {
  const std::string program = torchrun();
  if (const std::string reason = without_torchrun(program); !reason.empty()) {
    if (required("torchrun")) FAIL("torchrun is required: " << reason);
    SKIP(reason);
  }
  const TwoNetworks networks;
  if (!networks.ready()) SKIP("no network namespaces can be made here (root and iproute2 are needed)");
  const TemporaryFolder folder, whole;
  std::filesystem::create_directory(folder / "run");
  const Arguments options{"--data.num_train", "96", "--trainer.global_batch_size", "16", "--trainer.max_steps", "600"};
  REQUIRE(
      trainer(probe("fit", 1, 4, options), {.folder = whole.path(), .environment = {"OMP_NUM_THREADS=1"}}).exit_code ==
      0);
  // Steps are slow until the node is lost. A batch of a rank has 4 samples, however many ranks there are.
  const Arguments all = options + Arguments{"--trainer.callbacks+=ModelCheckpoint",
                                            "--trainer.callbacks.every_n_train_steps",
                                            "2",
                                            "--trainer.callbacks+=ProbeCallback",
                                            "--trainer.callbacks.sleep_until",
                                            (folder / "quick").string(),
                                            "--trainer.callbacks.sleep_ms",
                                            "100",
                                            "--trainer.strategy",
                                            "ddp",
                                            "--trainer.strategy.timeout_s",
                                            "5",
                                            "--trainer.strategy.start_timeout_s",
                                            "60",
                                            "--resume"};
  const std::string space = "fulgur-" + std::to_string(::getpid()) + "-";
  // Names of hosts do not say which of the two is node 0: is_host does. torchrun 2.11 tells an agent that comes later
  // where the store is only with the first variable.
  write_text(
      folder / "all.sh",
      "cd '" + (folder / "run").string() + "'\nexport OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n" +
          "node() { exec ip netns exec " + space + "$1 '" + program +
          "' --no-python --nnodes 1:2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint " +
          TwoNetworks::address(0) +
          ":29400 --rdzv-id lost --rdzv-conf "
          "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4,is_host=$3 "
          "--local-addr $2 --max-restarts 5 '" +
          FULGUR_TRAINER_BIN + "'" + quoted(probe("fit", 1, 4, all)) + " >../$1.txt 2>&1; }\n" +
          "until_said() { for i in $(seq 900); do cat ../0.txt ../1.txt 2>/dev/null | grep -q \"$1\" && return; "
          "sleep 0.1; done; echo \"no node said $1\"; kill $a $b; exit 1; }\n"
          "node 0 " +
          TwoNetworks::address(0) + " 1 & a=$!\n" + "until_said 'run folder'\n" + "node 1 " + TwoNetworks::address(1) +
          " 0 & b=$!\n" +
          "until_said 'of 2 (torchrun)'; until_said 'processes 1 → 2'; sleep 2\n"
          "ip -n " +
          space + "0 link set v0 down\n" +
          "until_said 'processes 2 → 1'\n"
          "touch ../quick; wait $a; code=$?; kill $b 2>/dev/null; sleep 2; kill -9 $b 2>/dev/null; exit $code\n");
  const Shell run = shell("bash '" + (folder / "all.sh").string() + "'");
  INFO(run.out);
  const std::string first = read_text(folder / "0.txt"), second = read_text(folder / "1.txt");
  INFO(first << "\n--- the lost node\n" << second);
  REQUIRE(run.code == 0);
  // The ranks of the lost node end by themselves.
  for (int i = 0; i < 300 && processes_in(folder / "run") > 0; ++i) ::usleep(100'000);
  CHECK(processes_in(folder / "run") == 0);
  CHECK(says(first, "global batch: 16 samples, in 4 batches of 4 on 1 rank"));
  CHECK(says(first + second, "global batch: 16 samples, in 2 batches of 4 on 2 ranks"));
  CHECK(says(first, "600 steps"));
  CHECK_FALSE(says(first, "trains differently"));
  CHECK(difference(last_checkpoint(whole.path()), last_checkpoint(folder / "run")) < 1e-5);
}

}  // namespace lost_node_test
