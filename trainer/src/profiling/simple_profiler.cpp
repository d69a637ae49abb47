#include "profiling/simple_profiler.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur::detail {

namespace {

constexpr int64_t kExchangeRow = -1;

// Whether the device has reached the moment; false also if the device has failed.
bool has_reached(const DeviceClock::Moment& moment) noexcept {
  try {
    return !moment.event || moment.event->query();
  } catch (const std::exception&) {
    return false;
  }
}

std::string actions_as_json(const std::vector<SimpleProfiler::Row>& rows, double elapsed_s, int64_t steps) {
  auto actions = nlohmann::ordered_json::array();
  for (const SimpleProfiler::Row& row : rows) {
    nlohmann::ordered_json action = {
        {"action", row.action}, {"calls", row.calls}, {"host_s", row.host_s}, {"own_s", row.own_s}};
    if (row.device_s) action["device_s"] = *row.device_s;
    actions.push_back(std::move(action));
  }
  return nlohmann::ordered_json{{"elapsed_s", elapsed_s}, {"steps", steps}, {"actions", std::move(actions)}}.dump(2);
}

}  // namespace

void SimpleProfiler::Options::fields(Fields& f) {
  f(skip_first, "skip_first", "Steps at the start of this process that are not measured.").at_least(0);
  f(steps, "steps", "Steps that are measured; 0: until the run ends.").at_least(0);
}

void SimpleProfiler::start(const ProfiledRun& run) {
  *this = SimpleProfiler(options_, std::move(steps_done_));  // nothing of the run before
  // A recording of a graph must not contain events.
  clock_.emplace(run.records_graphs ? at::Device(at::kCPU) : run.device);
  if (options_.skip_first == 0) begin_measuring();
}

void SimpleProfiler::begin_measuring() {
  DeviceClock::Moment moment = clock_->now();
  // Work of the steps that are not measured must not count.
  if (moment.event) moment.event->synchronize();
  moment.host = std::chrono::steady_clock::now();
  started_ = last_step_ = std::move(moment);
}

void SimpleProfiler::begin(const ProfiledAction& action) {
  open_.push_back({.row = action.index, .from = is_measuring() ? std::optional(clock_->now()) : std::nullopt});
}

void SimpleProfiler::end(const ProfiledAction& action) noexcept {
  try {
    Open open = std::move(open_.back());
    open_.pop_back();
    if (action.name == "backward") count_exchange();
    if (!open.from || ended_) return;
    Row& measured = row(action.index, action.name);
    const double host_s = add(measured, action.index, *std::move(open.from));
    measured.own_s += host_s - open.inner_s;
    if (!open_.empty()) open_.back().inner_s += host_s;
  } catch (const std::exception&) {
    // The device has failed; the exception that ends the action says how.
  }
}

void SimpleProfiler::step_done() {
  steps_ = steps_done_ ? steps_done_() : steps_ + 1;
  if (is_measuring()) {
    ++measured_;
    last_step_ = clock_->now();
    ended_ = options_.steps > 0 && steps_ >= options_.skip_first + options_.steps;
  } else if (!started_ && steps_ >= options_.skip_first) {
    begin_measuring();
  }
}

void SimpleProfiler::exchange_is_awaited() {
  if (is_measuring()) exchange_from_ = clock_->now();
}

void SimpleProfiler::count_exchange() {
  if (exchange_from_) exchange_.own_s += add(exchange_, kExchangeRow, *std::exchange(exchange_from_, std::nullopt));
}

SimpleProfiler::Row& SimpleProfiler::row(int64_t index, const std::string& name) {
  const auto at = static_cast<size_t>(index);
  if (at >= rows_.size()) rows_.resize(at + 1);
  rows_[at].action = name;
  return rows_[at];
}

double SimpleProfiler::add(Row& row, int64_t index, DeviceClock::Moment from) {
  Span span{.row = index, .from = std::move(from), .to = clock_->now()};
  const double host_s = DeviceClock::host_seconds(span.from, span.to);
  ++row.calls;
  row.host_s += host_s;
  if (!span.to.event) return host_s;
  pending_.push_back(std::move(span));
  while (!pending_.empty() && pending_.front().to.event->query()) {
    count(pending_.front());
    pending_.pop_front();
  }
  return host_s;
}

void SimpleProfiler::count(const Span& span) {
  Row& row = span.row == kExchangeRow ? exchange_ : rows_[static_cast<size_t>(span.row)];
  row.device_s = row.device_s.value_or(0) + clock_->seconds(span.from, span.to);
}

std::vector<SimpleProfiler::Row> SimpleProfiler::rows() {
  for (; !pending_.empty(); pending_.pop_front())
    if (!abandoned_ || has_reached(pending_.front().to)) count(pending_.front());
  std::vector<Row> sorted = rows_;
  sorted.push_back(exchange_);
  std::erase_if(sorted, [](const Row& row) { return row.calls == 0; });
  std::stable_sort(sorted.begin(), sorted.end(), [](const Row& a, const Row& b) { return a.host_s > b.host_s; });
  return sorted;
}

double SimpleProfiler::steps_s() const {
  if (!started_) return 0;
  if (abandoned_ && !has_reached(*last_step_)) return DeviceClock::host_seconds(*started_, *last_step_);
  return std::max(DeviceClock::host_seconds(*started_, *last_step_), clock_->seconds(*started_, *last_step_));
}

std::optional<Profile> SimpleProfiler::stop() {
  if (!started_)
    return Profile{.table = cat("nothing was measured: the run ended after ", counted(steps_, "step"),
                                ", and skip_first is ", options_.skip_first, "\n"),
                   .json = {}};
  const std::vector<Row> all = rows();
  const auto until = ended_ ? last_step_->host : std::chrono::steady_clock::now();
  const double elapsed_s = std::chrono::duration<double>(until - started_->host).count();
  return Profile{.table = cat("time of each action (an action may contain others), ", counted(steps(), "step"), ":\n",
                              action_table(all, elapsed_s)),
                 .json = actions_as_json(all, elapsed_s, steps())};
}

std::string action_table(const std::vector<SimpleProfiler::Row>& rows, double elapsed_s) {
  const auto share = [&](double seconds) { return format_fixed(100 * seconds / std::max(elapsed_s, 1e-9), 1); };
  const bool with_device = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.device_s; });
  std::vector<TextRow> cells{{"action", "calls", "mean ms", "total s", "share %"}};
  if (with_device) cells[0].insert(cells[0].end(), {"device mean ms", "device s", "device share %"});
  for (const SimpleProfiler::Row& row : rows) {
    const auto mean = [&](double seconds) {
      return format_fixed(1e3 * seconds / static_cast<double>(std::max<int64_t>(row.calls, 1)), 3);
    };
    cells.push_back(
        {row.action, std::to_string(row.calls), mean(row.host_s), format_fixed(row.host_s, 3), share(row.host_s)});
    if (row.device_s)
      cells.back().insert(cells.back().end(),
                          {mean(*row.device_s), format_fixed(*row.device_s, 3), share(*row.device_s)});
  }
  return aligned_lines(cells);
}

[[maybe_unused]] static const bool registered_simple_profiler = Registry<Profiler>::add<SimpleProfiler>(
    "simple", "Measures how often each action of the run happens and how long it takes, and prints a table.");

}  // namespace fulgur::detail
