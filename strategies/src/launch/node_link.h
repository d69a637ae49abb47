#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/strategies/launcher.h"
#include "launch/launch_store.h"

namespace fulgur::detail {

/// Communication between the launchers of several nodes about one attempt. A separate thread talks to the store, since
/// it may block if the network is gone.
class NodeLink {
 public:
  NodeLink(std::shared_ptr<LaunchStore> store, const LaunchOptions& options, int64_t attempt);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// Replaces a link if this node does not take part, for `reason`.
  static void refuse(LaunchStore& store, const LaunchOptions& options, int64_t attempt, const std::string& reason);

  /// Reports a failure here; the first reported failure reaches all nodes.
  void report_failure(const std::string& text);
  /// The final state of this node.
  enum class NodeStatus { ok, restart, stopped, give_up };
  void report_status(NodeStatus status);

  /// The first failure on any node, including this one.
  std::optional<std::string> trouble() const;
  /// The combined result of all nodes, once each has reported: the last of the list above. Once node 0 has it, all
  /// others have received it, and the store may be closed.
  std::optional<NodeStatus> verdict() const;
  /// The store no longer responds.
  bool lost() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fulgur::detail
