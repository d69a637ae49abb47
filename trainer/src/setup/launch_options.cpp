#include "fulgur/trainer/launch_options.h"

#include "fulgur/strategies/cluster_environment.h"

namespace fulgur {

LaunchOptions launch_options(const TrainerOptions& options, const LaunchPlan& plan, int64_t processes) {
  const NodePlace node = detect_node(process_environment(), options.num_nodes);
  LaunchOptions launched{.processes = processes, .num_nodes = options.num_nodes, .node_rank = node.node_rank};
  launched.main_address = node.main_address;
  launched.main_port = node.main_port;
  launched.max_restarts = plan.max_restarts;
  launched.start_timeout_s = plan.start_timeout_s;
  return launched;
}

}  // namespace fulgur
