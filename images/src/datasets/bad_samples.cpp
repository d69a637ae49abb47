#include "datasets/bad_samples.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

bool BadSamples::contains(int64_t index) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return found_.contains(index);
}

void BadSamples::add(int64_t index, const std::string& name, const std::string& reason) {
  const std::string text = cat("sample ", index, " (", escape_controls(name), "): ", reason);
  std::vector<std::string> all;
  {
    const std::lock_guard lock(mutex_);
    if (!found_.emplace(index, text).second) return;
    any_.store(true, std::memory_order_release);
    if (static_cast<int64_t>(found_.size()) > most_)
      for (const auto& [found, description] : found_) all.push_back(description);
  }
  if (!all.empty()) {
    const auto count = static_cast<int64_t>(all.size());
    throw DataError(cat("[images.ImageDataset] at most max_bad_samples = ", most_, " samples may be bad; ", count,
                        " are: ", join_some(std::move(all), 100, "; "),
                        ". Replace or remove these files, or raise max_bad_samples."));
  }
  log::warn("images.bad_sample",
            "on_bad_sample is skip, and samples cannot be read; each of them is named in a message");
  log::info(cat("skipped bad ", text));
}

std::vector<int64_t> BadSamples::indices() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> indices;
  for (const auto& [index, text] : found_) indices.push_back(index);
  return indices;
}

}  // namespace fulgur::detail
