#include "profiling/memory_profiler.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur::detail {

namespace {

void raise_to(MemoryLevel& peak, const MemoryLevel& other) {
  peak.allocated = std::max(peak.allocated, other.allocated);
  peak.reserved = std::max(peak.reserved, other.reserved);
}

std::string memory_in_mib(int64_t bytes) { return format_fixed(static_cast<double>(bytes) / (1024 * 1024), 2); }

std::string memory_as_json(const std::vector<MemoryProfiler::Row>& rows,
                           const std::vector<MemoryWatch::Layer>& layers) {
  auto actions = nlohmann::ordered_json::array();
  for (const MemoryProfiler::Row& row : rows)
    actions.push_back({{"action", row.action},
                       {"calls", row.calls},
                       {"device", row.device},
                       {"peak_allocated_bytes", row.peak.allocated},
                       {"peak_reserved_bytes", row.peak.reserved},
                       {"kept_bytes", row.kept}});
  auto of_layers = nlohmann::ordered_json::array();
  for (const MemoryWatch::Layer& layer : layers)
    of_layers.push_back({{"layer", layer.name},
                         {"kept_bytes", layer.kept},
                         {"forward_peak_bytes", layer.forward_peak},
                         {"backward_peak_bytes", layer.backward_peak}});
  return nlohmann::ordered_json{{"actions", std::move(actions)}, {"layers", std::move(of_layers)}}.dump(2);
}

}  // namespace

void MemoryProfiler::Options::fields(Fields& f) {
  f(layers, "layers",
    "Also finds the layer of each operation of training, which takes some microseconds for each of them.");
}

void MemoryProfiler::start(const ProfiledRun& run) {
  *this = MemoryProfiler(options_);  // nothing of the run before
  if (torch::profiler::impl::profilerType() != torch::profiler::impl::ActiveProfilerType::NONE)
    return log::warn("trainer.profiler_in_use",
                     "the profiler memory: another profiler of LibTorch already records in this thread, so nothing is "
                     "counted");
  run_ = run;
  watch_ = std::make_shared<MemoryWatch>();
  if (options_.layers && run.module) watch_->watch_layers(*run.module, run.device);
  installed_ = std::make_unique<InstalledMemoryWatch>(watch_, options_.layers);
}

// Charges the peak since the last call to the innermost open action.
void MemoryProfiler::take_peaks() {
  const size_t devices = watch_->devices().size();
  for (size_t i = 0; i < devices; ++i) {
    const MemoryLevel peak = watch_->take_peak(i);
    if (open_.empty()) continue;
    auto& on_device = open_.back().on_device;
    if (on_device.size() <= i) on_device.resize(i + 1);
    raise_to(on_device[i].peak, peak);
  }
}

void MemoryProfiler::begin(const ProfiledAction& action) {
  if (!watch_) return;
  take_peaks();
  Open& opened = open_.emplace_back();
  opened.outer = phase_;
  for (size_t i = 0; i < watch_->devices().size(); ++i) {
    const MemoryLevel now = watch_->now(i);
    opened.on_device.push_back({.peak = now, .before = now});
  }
  if (action.name == "training_step") phase_ = MemoryWatch::Phase::forward;
  if (action.name == "backward") phase_ = MemoryWatch::Phase::backward;
  // With manual optimization it is inside training_step.
  if (action.name == "optimizer_step") phase_ = MemoryWatch::Phase::other;
  if (phase_ != opened.outer) watch_->set_phase(phase_);
}

void MemoryProfiler::end(const ProfiledAction& action) noexcept {
  if (!watch_ || open_.empty()) return;
  take_peaks();
  const Open closed = std::move(open_.back());
  open_.pop_back();
  if (phase_ != closed.outer) watch_->set_phase(phase_ = closed.outer);
  const auto at = static_cast<size_t>(action.index);
  if (at >= counted_.size()) counted_.resize(at + 1);
  Counted& counted = counted_[at];
  counted.action = action.name;
  ++counted.calls;
  counted.on_device.resize(std::max(counted.on_device.size(), closed.on_device.size()));
  for (size_t i = 0; i < closed.on_device.size(); ++i) {
    const auto& [peak, before] = closed.on_device[i];
    OnDevice& all = counted.on_device[i];
    raise_to(all.peak, peak);
    all.before.allocated += watch_->now(i).allocated - before.allocated;
    // The peak inside an action is also one of the action around it.
    if (open_.empty()) continue;
    auto& outer = open_.back().on_device;
    if (outer.size() <= i) outer.resize(i + 1);
    raise_to(outer[i].peak, peak);
  }
}

void MemoryProfiler::step_done() {
  if (watch_) watch_->end_step();
}

std::vector<MemoryProfiler::Row> MemoryProfiler::rows() const {
  std::vector<Row> all;
  for (const Counted& counted : counted_) {
    for (size_t i = 0; i < counted.on_device.size(); ++i) {
      const auto& [peak, kept] = counted.on_device[i];
      if (peak.allocated == 0 && peak.reserved == 0) continue;
      all.push_back({.action = counted.action,
                     .device = watch_->devices()[i].str(),
                     .calls = counted.calls,
                     .peak = peak,
                     .kept = kept.allocated});
    }
  }
  std::ranges::stable_sort(all, std::greater<>(), [](const Row& row) { return row.peak.allocated; });
  return all;
}

std::optional<Profile> MemoryProfiler::stop() {
  installed_.reset();
  if (!watch_) return std::nullopt;
  const std::vector<Row> all = rows();
  std::vector<MemoryWatch::Layer> layers = watch_->layers();
  std::erase_if(layers, [](const auto& layer) { return layer.forward_peak == 0 && layer.backward_peak == 0; });
  int64_t of_module = 0;
  if (run_.module) {
    for (const auto& parameter : run_.module->parameters()) of_module += static_cast<int64_t>(parameter.nbytes());
    for (const auto& buffer : run_.module->buffers()) of_module += static_cast<int64_t>(buffer.nbytes());
  }
  const std::string what =
      run_.device.is_cpu()
          ? cat("memory of tensors that the run has allocated since its start, beside ", memory_in_mib(of_module),
                " MiB of parameters and buffers")
          : cat("memory of tensors, with ", memory_in_mib(of_module), " MiB of parameters and buffers");
  return Profile{.table = cat(what, ":\n", memory_table(all, layers)), .json = memory_as_json(all, layers)};
}

std::string memory_table(const std::vector<MemoryProfiler::Row>& rows, const std::vector<MemoryWatch::Layer>& layers) {
  const bool reserves = std::ranges::any_of(rows, [](const auto& row) { return row.peak.reserved > 0; });
  std::vector<TextRow> cells{{"action", "calls", "device", "peak MiB", "kept MiB"}};
  if (reserves) cells[0].emplace_back("peak reserved MiB");
  for (const MemoryProfiler::Row& row : rows) {
    cells.push_back({row.action, std::to_string(row.calls), row.device, memory_in_mib(row.peak.allocated),
                     memory_in_mib(row.kept)});
    if (reserves) cells.back().push_back(memory_in_mib(row.peak.reserved));
  }
  std::string table = aligned_lines(cells);
  if (layers.empty()) return table;
  cells = {{"layer", "kept for backward MiB", "peak in forward MiB", "peak in backward MiB"}};
  for (const MemoryWatch::Layer& layer : layers)
    cells.push_back(
        {layer.name, memory_in_mib(layer.kept), memory_in_mib(layer.forward_peak), memory_in_mib(layer.backward_peak)});
  return table + aligned_lines(cells);
}

[[maybe_unused]] static const bool registered_memory_profiler = Registry<Profiler>::add<MemoryProfiler>(
    "memory", "Measures the most memory that tensors take in each action and each layer, and prints tables.");

}  // namespace fulgur::detail
