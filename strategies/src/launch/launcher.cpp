#include "fulgur/strategies/launcher.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <set>

#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/child_process.h"
#include "fulgur/strategies/signal_pipe.h"
#include "launch/group_outcome.h"
#include "launch/launch_store.h"
#include "launch/node_link.h"

namespace fulgur {
namespace {

using namespace detail;
using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

/// One start of this node's group, until all its processes have ended.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, const std::vector<std::string>& arguments, std::shared_ptr<LaunchStore> store,
          SignalPipe& signals, int64_t restarts)
      : options_(options), arguments_(arguments), store_(std::move(store)), signals_(signals), restarts_(restarts) {
    if (options_.num_nodes > 1) link_ = std::make_unique<NodeLink>(store_, options_, restarts_);
  }

  /// True if the group must be restarted.
  bool run(LaunchReport& report) {
    start();
    while (std::ranges::any_of(processes_, [](const ChildProcess& process) { return process.running(); })) {
      wait_and_pass_on();
      reap();
      if (link_ && phase_ == Phase::running) listen();
      advance();
    }
    return conclude(report);
  }

  /// After `run`: what failed, and details; `console`: without the messages of ranks, which are on the console.
  const std::string& headline(bool console) const { return console ? console_headline_ : headline_; }
  const std::vector<std::string>& details(bool console) const { return console ? console_details_ : details_; }

 private:
  static constexpr const char* kLost = "the launcher of node 0 has ended";
  enum class Phase { running, grace, terminated, killed };

  int64_t world_size() const { return options_.processes * options_.num_nodes; }
  int64_t rank_of(size_t process) const {
    return options_.node_rank * options_.processes + static_cast<int64_t>(process);
  }

  Environment environment_of(int64_t local_rank) const {
    Environment out = process_environment();
    const auto set = [&](const char* name, const auto& value) { out[name] = cat(value); };
    set("RANK", options_.node_rank * options_.processes + local_rank);
    set("WORLD_SIZE", world_size());
    set("LOCAL_RANK", local_rank);
    set("LOCAL_WORLD_SIZE", options_.processes);
    set("NODE_RANK", options_.node_rank);
    set("GROUP_RANK", options_.node_rank);
    set("GROUP_WORLD_SIZE", options_.num_nodes);
    set("MASTER_ADDR", options_.main_address);
    set("MASTER_PORT", options_.num_nodes > 1 ? options_.main_port : store_->port());
    set("FULGUR_LAUNCHER", 1);
    set("FULGUR_RESTARTS", restarts_);
    if (options_.show && local_rank + options_.node_rank > 0) set("FULGUR_LAUNCHER_SHOWS", 1);
    // N processes that each use all processors would slow each other down.
    std::string& threads = out["OMP_NUM_THREADS"];
    const bool is_share = out.erase(kDivideThreads) > 0;
    if (threads.empty()) threads = cat(std::max<int64_t>(1, usable_cpus() / options_.processes));
    // What a sweep has set is the share of all processes of its trial.
    else if (is_share)
      threads = cat(std::max<int64_t>(1, parse_whole<int64_t>(threads).value_or(1) / options_.processes));
    return out;
  }

  void start() {
    const std::filesystem::path program =
        options_.program.empty() ? std::filesystem::path("/proc/self/exe") : options_.program;
    try {
      for (int64_t i = 0; i < options_.processes; ++i)
        processes_.emplace_back(program, arguments_, environment_of(i), signals_);
    } catch (const DistributedError& error) {
      if (link_) NodeLink::refuse(*store_, options_, restarts_, error.what());
      throw;
    }
  }

  void wait_and_pass_on() {
    auto timeout = std::chrono::milliseconds(-1);
    if (phase_ != Phase::running)
      timeout = std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()),
                         std::chrono::milliseconds(0));
    for (const int signal : signals_.wait(timeout)) {
      if (signal == SIGCHLD) continue;
      if (signal != SIGUSR1) stop_signal_ = signal;
      for (const ChildProcess& process : processes_) process.send(signal);
    }
  }

  void reap() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      const std::optional<ProcessEnd> end = processes_[i].reap();
      if (!end) continue;
      const bool killed = phase_ == Phase::killed && end->by_signal && end->value == SIGKILL;
      ends_.push_back({rank_of(i), *end, processes_[i].words(), phase_ == Phase::terminated || phase_ == Phase::killed,
                       killed, stop_signal_});
    }
    if (phase_ != Phase::running || ends_.empty()) return;
    const GroupOutcome verdict = classify_exits(ends_, world_size());
    if (!verdict.failed) return;
    if (link_)
      link_->report_failure(verdict.headline);
    else
      store_->put_first(launcher_failure_key(restarts_), verdict.headline);
    end_others(verdict.console_headline);
  }

  /// Failures on other nodes end this node's processes too.
  void listen() {
    if (const std::optional<std::string> trouble = link_->trouble())
      end_others(cat("another node failed: ", *trouble));
    else if (link_->lost())
      end_others(kLost);
  }

  void end_others(const std::string& what) {
    phase_ = Phase::grace;
    deadline_ = Clock::now() + seconds(options_.grace_s);
    const auto running =
        std::ranges::count_if(processes_, [](const ChildProcess& process) { return process.running(); });
    if (running > 0)
      log::info(cat("launcher: ", without_period(what), "; the others have ", format_fixed(options_.grace_s, 1),
                    " s to end"));
  }

  void advance() {
    if (phase_ == Phase::running || Clock::now() < deadline_) return;
    if (phase_ == Phase::grace) {
      for (const ChildProcess& process : processes_) process.send(SIGTERM);
      phase_ = Phase::terminated;
    } else {
      for (const ChildProcess& process : processes_) process.kill();
      phase_ = Phase::killed;
    }
    deadline_ = Clock::now() + seconds(options_.grace_s);
  }

  bool conclude(LaunchReport& report) {
    show_words();
    const GroupOutcome verdict = classify_exits(ends_, world_size());
    report.exit_code = verdict.exit_code;
    headline_ = verdict.headline;
    details_ = verdict.details;
    console_headline_ = verdict.console_headline;
    console_details_ = verdict.console_details;
    // After a stop signal there is no restart.
    bool again = verdict.restartable && stop_signal_ == 0 && restarts_ < options_.max_restarts;
    if (link_) again = agree(report, verdict, again);
    return again;
  }
  /// Shows each message once; rank 0 prints its own.
  void show_words() const {
    if (!options_.show) return;
    std::set<std::string> said;
    for (const RankEnd& end : ends_)
      if (end.rank == 0) said.insert(end.words);
    for (const RankEnd& end : ends_)
      if (end.rank != 0 && !end.words.empty() && said.insert(end.words).second) options_.show(end.rank, end.words);
  }
  /// Either all nodes restart, or none.
  bool agree(LaunchReport& report, const GroupOutcome& verdict, bool again) {
    using NodeStatus = NodeLink::NodeStatus;
    const bool trouble = verdict.failed || link_->trouble() || (link_->lost() && phase_ != Phase::running);
    if (!verdict.failed && trouble) again = stop_signal_ == 0 && restarts_ < options_.max_restarts;
    link_->report_status(again                                         ? NodeStatus::restart
                         : trouble                                     ? NodeStatus::give_up
                         : stop_signal_ != 0 || verdict.exit_code != 0 ? NodeStatus::stopped
                                                                       : NodeStatus::ok);
    // Others may need all their time to end unresponsive processes. If this node is fine, the others are nearly done
    // too.
    const auto deadline =
        Clock::now() + seconds(trouble ? 3 * options_.grace_s + 5 : std::max(300.0, 3 * options_.grace_s));
    bool asked_to_leave = false;
    while (!link_->verdict() && !link_->lost() && !asked_to_leave && Clock::now() < deadline) {
      for (const int signal : signals_.wait(std::chrono::milliseconds(200)))
        asked_to_leave |= signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
    }
    const std::optional<NodeStatus> all = link_->verdict();
    const std::optional<std::string> first = link_->trouble();
    if (headline_.empty() && (first || (link_->lost() && phase_ != Phase::running))) {
      headline_ = console_headline_ = first ? cat("another node failed: ", *first) : kLost;
      if (report.exit_code == 0) report.exit_code = static_cast<int>(ExitCode::distributed);
    } else if (first && headline_ != *first) {
      add_detail(cat("The first failure of all nodes: ", without_period(*first), "."));
    }
    if (!all && !headline_.empty() && headline_ != kLost)
      add_detail(link_->lost() ? "The launcher of node 0 has ended." : "Not all launchers of the other nodes answer.");
    return all == NodeStatus::restart;
  }

  void add_detail(const std::string& line) {
    details_.push_back(line);
    console_details_.push_back(line);
  }

  const LaunchOptions& options_;
  const std::vector<std::string>& arguments_;
  std::shared_ptr<LaunchStore> store_;
  SignalPipe& signals_;
  int64_t restarts_;
  std::unique_ptr<NodeLink> link_;
  std::vector<ChildProcess> processes_;
  std::vector<RankEnd> ends_;  // in the order in which they were observed
  Phase phase_ = Phase::running;
  Clock::time_point deadline_{};
  int stop_signal_ = 0;
  std::string headline_, console_headline_;
  std::vector<std::string> details_, console_details_;
};

std::string full_report(const Attempt& attempt, const LaunchOptions& options, int64_t restarts, bool console) {
  if (attempt.headline(console).empty()) return {};
  std::vector<std::string> lines{cat("[strategies.launcher] ", attempt.headline(console))};
  lines.insert(lines.end(), attempt.details(console).begin(), attempt.details(console).end());
  if (restarts > 0)
    lines.emplace_back(
        cat("The group was restarted ", counted(restarts, "time"), " (max_restarts ", options.max_restarts, ")."));
  lines.emplace_back("The output of each process is above.");
  return join(lines, "\n");
}

void check_options(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  const auto fail = [](const std::string& what) { throw ConfigError(cat("[strategies.launcher] ", what)); };
  if (arguments.empty())
    fail("arguments must begin with the name of the program; there are none. Give at least the name.");
  if (options.processes < 1)
    fail(cat("a group must have at least one process; processes is ", options.processes, ". Set devices."));
  if (options.num_nodes < 1 || options.node_rank < 0 || options.node_rank >= options.num_nodes)
    fail(cat("nodes count from 0; node ", options.node_rank, " of ", options.num_nodes,
             " does not exist. Set num_nodes and NODE_RANK."));
  if (options.main_port < 0 || options.main_port > 65535)
    fail(cat("a port must be from 0 to 65535; it is ", options.main_port, ". Set MASTER_PORT."));
  if (options.num_nodes > 1 && options.main_port == 0)
    fail("several nodes meet at a common port; none was given. Set MASTER_PORT.");
  if (options.max_restarts < 0) fail(cat("max_restarts must be 0 or more; it is ", options.max_restarts, "."));
  if (!(options.grace_s >= 0) || !(options.start_timeout_s >= 0))
    fail("grace_s and start_timeout_s must be at least 0 s; one of them is negative.");
}

/// Nodes with different launch options would never connect.
void join_nodes(LaunchStore& store, const LaunchOptions& options) {
  const auto fail = [](const std::string& what) {
    throw DistributedError(
        cat("[strategies.launcher] ", what, ". Give all nodes the same config, and each its own NODE_RANK."));
  };
  const std::string here =
      cat(options.num_nodes, " nodes with ", options.processes, " processes each, max_restarts ", options.max_restarts);
  // Node 0 goes first, so that the others are reported as different.
  if (options.node_rank == 0) store.put_first("launcher/shape", here);
  if (const std::string there = store.wait_for("launcher/shape"); there != here) {
    const std::string wrong = cat("all nodes must be started with the same options; node ", options.node_rank, " has ",
                                  here, ", node 0 has ", there);
    NodeLink::refuse(store, options, 0, wrong);
    fail(wrong);
  }
  if (store.add(cat("launcher/node/", options.node_rank), 1) > 1) {
    const std::string wrong = cat("each node must have its own number; ", options.node_rank, " is used twice");
    store.put_first(launcher_failure_key(0), wrong);
    fail(wrong);
  }
}

}  // namespace

LaunchReport launch(const LaunchOptions& options, const std::vector<std::string>& arguments) {
  check_options(options, arguments);
  LaunchReport report;
  // Signals have their default effect while waiting for node 0: there are no processes yet.
  auto store = std::make_shared<LaunchStore>(options);
  if (options.num_nodes > 1) join_nodes(*store, options);
  SignalPipe signals;
  while (true) {
    {
      Attempt attempt(options, arguments, store, signals, report.restarts);
      if (!attempt.run(report)) {
        report.message = full_report(attempt, options, report.restarts, /*console=*/false);
        report.console = full_report(attempt, options, report.restarts, /*console=*/true);
        return report;
      }
      ++report.restarts;
      log::info(cat("launcher: ", without_period(attempt.headline(/*console=*/true)), "; starting again, ",
                    report.restarts, " of ", options.max_restarts));
    }
    // A new store has no keys of the last attempt. Several nodes keep their store, with separate keys for each attempt.
    if (options.num_nodes == 1) {
      store.reset();
      store = std::make_shared<LaunchStore>(options);
    }
  }
}

}  // namespace fulgur
