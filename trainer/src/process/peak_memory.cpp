#include "process/peak_memory.h"

#include <algorithm>
#include <sstream>

#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace detail {

std::vector<PeakMemory> gather_peak_memory(RunContext& run) {
  std::string own = cat("cpu ", process_usage().peak_resident, "\n");
  for (const at::Device& device : run.devices())
    if (const auto memory = device_memory(device)) own += cat(device.str(), " ", memory->peak_allocated, "\n");
  std::vector<PeakMemory> peaks;
  int64_t rank = 0;
  for (const std::string& lines : run.collectives().gather_text(own)) {
    std::istringstream words(lines);
    for (PeakMemory peak{.rank = rank, .device = {}}; words >> peak.device >> peak.bytes;) peaks.push_back(peak);
    ++rank;
  }
  return peaks;
}

}  // namespace detail

namespace {

std::string size_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? cat(format_fixed(mib, 0), " MiB") : cat(format_fixed(mib / 1024, 2), " GiB");
}

// `cuda:3` is a `cuda`.
std::string kind_of(const PeakMemory& peak) { return peak.device.substr(0, peak.device.find(':')); }

}  // namespace

std::string peak_memory_text(const std::vector<PeakMemory>& peaks) {
  if (peaks.empty()) return "peak memory: unknown";
  const bool several = std::ranges::any_of(peaks, [](const PeakMemory& peak) { return peak.rank > 0; });
  std::vector<PeakMemory> most;
  for (const PeakMemory& peak : peaks) {
    // With several ranks, the maximum of each kind; with one rank, all its devices.
    const auto same = std::ranges::find_if(most, [&](const PeakMemory& other) {
      return several ? kind_of(other) == kind_of(peak) : other.device == peak.device;
    });
    if (same == most.end())
      most.push_back(peak);
    else if (peak.bytes > same->bytes)
      *same = peak;
  }
  std::vector<std::string> parts;
  for (const PeakMemory& peak : most)
    parts.push_back(cat(peak.device, " ", size_text(peak.bytes), peak.device == "cpu" ? " resident" : "",
                        several ? cat(" (rank ", peak.rank, ")") : ""));
  return cat("peak memory: ", join(parts, " · "));
}

}  // namespace fulgur
