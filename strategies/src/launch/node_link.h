#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/strategies/launcher.h"
#include "launch/launch_store.h"

namespace fulgur::detail {

/// What the launchers of several nodes tell each other about one attempt. A thread of its own talks to the store, since
/// a network that is gone may make it wait.
class NodeLink {
 public:
  NodeLink(std::shared_ptr<LaunchStore> store, const LaunchOptions& options, int64_t attempt);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// In the place of a link: this node does not take part, for `reason`.
  static void refuse(LaunchStore& store, const LaunchOptions& options, int64_t attempt, const std::string& reason);

  /// Something has failed here; the first that says so is heard on all nodes.
  void report_failure(const std::string& text);
  /// The last word of this node.
  enum class NodeStatus { ok, restart, stopped, give_up };
  void report_status(NodeStatus status);

  /// The first trouble on any node, this one included.
  std::optional<std::string> trouble() const;
  /// What all nodes together say, once each has spoken: the last of the list above. Where it is there on node 0, all
  /// others have heard it, and the store may go.
  std::optional<NodeStatus> verdict() const;
  /// The store does not answer any more.
  bool lost() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fulgur::detail
