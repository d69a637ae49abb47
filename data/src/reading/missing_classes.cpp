#include "fulgur/data/missing_classes.h"

#include <string>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void warn_missing_classes(std::string_view source, const std::vector<int64_t>& labels, int64_t num_classes) {
  constexpr int64_t kMostClassesToCheck = 1'000'000;
  constexpr size_t kMostShown = 6;
  if (num_classes < 1 || num_classes > kMostClassesToCheck) return;
  std::vector<bool> has_sample(static_cast<size_t>(num_classes), false);
  for (const int64_t label : labels) has_sample[static_cast<size_t>(label)] = true;
  std::vector<std::string> missing;
  for (size_t label = 0; label < has_sample.size() && missing.size() <= kMostShown; ++label)
    if (!has_sample[label]) missing.push_back(std::to_string(label));
  if (missing.empty()) return;
  log::warn("data.missing_classes",
            cat("the largest label of '", escape_controls(source), "' is ", num_classes - 1, ", so there are ",
                num_classes, " classes, but no sample has the label ", join_some(missing, kMostShown),
                ". Number the classes from 0 without gaps, unless these classes are to be kept"));
}

}  // namespace fulgur::detail
