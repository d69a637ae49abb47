#include "fulgur/loggers/memory_logger.h"

namespace fulgur {

void MemoryLogger::start(const std::filesystem::path& dir, std::optional<int64_t> resume_step) {
  log_dir = dir;
  status.reset();
  if (!resume_step) return;
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
