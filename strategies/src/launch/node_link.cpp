#include "launch/node_link.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/signal_pipe.h"

namespace fulgur::detail {

namespace {

std::string heard_key_of(int64_t attempt) { return cat("launcher/heard/", attempt); }
std::string verdict_key_of(int64_t attempt, int64_t node) { return cat("launcher/verdict/", attempt, "/", node); }

}  // namespace

/// Shared with the thread, which may outlive the link if the network is gone.
struct NodeLink::State {
  std::shared_ptr<LaunchStore> store;
  int64_t num_nodes = 0, node_rank = 0, attempt = 0;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, lost = false;
  std::string trouble_here;                // to be sent
  std::optional<NodeStatus> verdict_here;  // to be sent
  std::optional<std::string> trouble;      // received
  std::optional<NodeStatus> verdict;       // received

  bool counted = false;  // used only by the thread

  std::string heard_key() const { return heard_key_of(attempt); }
  std::string verdict_key(int64_t node) const { return verdict_key_of(attempt, node); }

  /// One round; without the lock, since it may block.
  void talk(const std::string& trouble_to_tell, const std::optional<NodeStatus>& verdict_to_tell) {
    const std::string key = launcher_failure_key(attempt);
    if (!trouble_to_tell.empty()) store->put_first(key, trouble_to_tell);
    if (verdict_to_tell) store->put_first(verdict_key(node_rank), std::to_string(static_cast<int>(*verdict_to_tell)));
    const std::optional<std::string> heard = store->get(key);
    std::optional<NodeStatus> all = verdict_to_tell;
    for (int64_t node = 0; all && node < num_nodes; ++node) {
      const std::optional<std::string> word = store->get(verdict_key(node));
      if (word)
        all = std::max(*all, static_cast<NodeStatus>(word->front() - '0'));
      else
        all.reset();
    }
    if (all && !counted) {
      store->add(heard_key(), 1);
      counted = true;
    }
    if (all && node_rank == 0 && store->add(heard_key(), 0) < num_nodes) all.reset();
    const std::lock_guard lock(mutex);
    // Under the lock, with which the link announces that the pipe may be destroyed.
    if (!stop && ((heard && !trouble) || all)) SignalPipe::wake();
    trouble = heard;
    verdict = all;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      const std::string trouble_to_tell = trouble_here;
      const std::optional<NodeStatus> verdict_to_tell = verdict_here;
      lock.unlock();
      bool good = true;
      try {
        talk(trouble_to_tell, verdict_to_tell);
      } catch (const std::exception&) {
        good = false;
      }
      lock.lock();
      if (!good) {
        lost = true;
        if (!stop) SignalPipe::wake();
        return;
      }
      if (verdict) return;  // nothing more to receive, and node 0 may leave
      changed.wait_for(lock, std::chrono::milliseconds(300),
                       [&] { return stop || trouble_here != trouble_to_tell || verdict_here != verdict_to_tell; });
    }
  }
};

NodeLink::NodeLink(std::shared_ptr<LaunchStore> store, const LaunchOptions& options, int64_t attempt)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->num_nodes = options.num_nodes;
  state_->node_rank = options.node_rank;
  state_->attempt = attempt;
  start_thread("strategies.launch", "Start fewer ranks, or use fewer threads.", [state = state_] {
    state->run();
  }).detach();
}

NodeLink::~NodeLink() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void NodeLink::refuse(LaunchStore& store, const LaunchOptions& options, int64_t attempt, const std::string& reason) {
  try {
    store.put_first(launcher_failure_key(attempt), reason);
    store.put_first(verdict_key_of(attempt, options.node_rank), std::to_string(static_cast<int>(NodeStatus::give_up)));
    store.add(heard_key_of(attempt), 1);
  } catch (const DistributedError&) {
    // No one is left to notify.
  }
}

void NodeLink::report_failure(const std::string& text) {
  const std::lock_guard lock(state_->mutex);
  state_->trouble_here = text;
  state_->changed.notify_all();
}

void NodeLink::report_status(NodeStatus status) {
  const std::lock_guard lock(state_->mutex);
  state_->verdict_here = status;
  state_->changed.notify_all();
}

std::optional<std::string> NodeLink::trouble() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trouble;
}

std::optional<NodeLink::NodeStatus> NodeLink::verdict() const {
  const std::lock_guard lock(state_->mutex);
  return state_->verdict;
}

bool NodeLink::lost() const {
  const std::lock_guard lock(state_->mutex);
  return state_->lost;
}

}  // namespace fulgur::detail
