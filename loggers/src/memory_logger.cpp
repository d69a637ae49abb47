#include "fulgur/loggers/memory_logger.h"

#include <utility>

namespace fulgur {

StateTree MemoryLogger::state() {
  return StateTree::map({{"rows", static_cast<int64_t>(rows.size())}, {"media", static_cast<int64_t>(media.size())}});
}

void MemoryLogger::load_state(const StateTree& state) { resumed_ = state; }

void MemoryLogger::start(const std::filesystem::path& dir, std::optional<int64_t> resume_step) {
  log_dir = dir;
  status.reset();
  const std::optional<StateTree> state = std::exchange(resumed_, std::nullopt);
  if (!resume_step) return;
  // In another process, nothing has been logged yet.
  const auto count = [&](const char* name) { return static_cast<size_t>(state->at(name).as_uint()); };
  if (state && count("rows") <= rows.size() && count("media") <= media.size()) {
    rows.resize(count("rows"));
    media.resize(count("media"));
    return;
  }
  std::erase_if(rows, [&](const Row& row) { return row.step > *resume_step; });
  std::erase_if(media, [&](const Media& entry) { return entry.step > *resume_step; });
}

std::vector<std::pair<int64_t, double>> MemoryLogger::values(std::string_view name) const {
  std::vector<std::pair<int64_t, double>> found;
  for (const Row& row : rows)
    for (const auto& [key, value] : row.metrics)
      if (key == name) found.emplace_back(row.step, value);
  return found;
}

}  // namespace fulgur
