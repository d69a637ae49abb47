#include "services/action_times.h"

#include <algorithm>

#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur::detail {

void ActionTimes::Timer::begin() { from_ = times_->clock_->now(); }

void ActionTimes::Timer::end() noexcept {
  try {
    times_->add(*row_, *std::move(from_));
  } catch (const std::exception&) {
    // The device has failed; the exception that ends the action says how.
  }
}

void ActionTimes::start(at::Device device, bool with_events) {
  clock_.emplace(with_events ? device : at::Device(at::kCPU));
  started_ = std::chrono::steady_clock::now();
}

double ActionTimes::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

ActionTimes::Row& ActionTimes::row(const std::type_info* type, const char* hook) {
  const auto [found, is_new] = rows_.try_emplace({type, hook});
  if (is_new) found->second.action = type ? cat(class_name(*type), ".", hook) : std::string(hook);
  return found->second;
}

void ActionTimes::add(Row& row, DeviceClock::Moment from) {
  Span span{.row = &row, .from = std::move(from), .to = clock_->now()};
  ++row.calls;
  row.host_s += DeviceClock::host_seconds(span.from, span.to);
  if (!span.to.event) return;
  pending_.push_back(std::move(span));
  while (!pending_.empty() && pending_.front().to.event->query()) {
    count(pending_.front());
    pending_.pop_front();
  }
}

void ActionTimes::count(const Span& span) {
  span.row->device_s = span.row->device_s.value_or(0) + clock_->seconds(span.from, span.to);
}

std::vector<ActionTimes::Row> ActionTimes::rows() {
  for (; !pending_.empty(); pending_.pop_front()) count(pending_.front());
  std::vector<Row> sorted;
  for (const auto& [key, row] : rows_) sorted.push_back(row);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Row& a, const Row& b) { return a.host_s > b.host_s; });
  return sorted;
}

std::string action_table(const std::vector<ActionTimes::Row>& rows, double elapsed_s) {
  const bool with_device = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.device_s; });
  std::vector<TextRow> cells{{"action", "calls", "mean ms", "total s", "share %"}};
  if (with_device) cells[0].push_back("device s");
  for (const ActionTimes::Row& row : rows) {
    cells.push_back({row.action, std::to_string(row.calls),
                     format_fixed(1e3 * row.host_s / static_cast<double>(std::max<int64_t>(row.calls, 1)), 3),
                     format_fixed(row.host_s, 3), format_fixed(100 * row.host_s / std::max(elapsed_s, 1e-9), 1)});
    if (with_device) cells.back().push_back(row.device_s ? format_fixed(*row.device_s, 3) : "");
  }
  const std::vector<int64_t> widths = column_widths(cells);
  std::string table;
  for (const TextRow& row : cells) table += aligned(row, widths) + "\n";
  return table;
}

}  // namespace fulgur::detail
