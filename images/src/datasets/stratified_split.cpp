#include "fulgur/images/stratified_split.h"

#include <algorithm>
#include <map>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/subset_dataset.h"

namespace fulgur {
namespace {

struct LabelGroup {
  std::vector<int64_t> samples;  ///< in ascending order
  std::vector<int64_t> counts;   ///< by part
  int64_t left = 0;              ///< samples that no part has yet
};

/// Takes `size` samples for the next part: of each label its share of all `count`, rounded down; what is missing comes
/// from the labels with the largest fractions.
void take_part(std::vector<LabelGroup>& groups, int64_t size, int64_t count) {
  struct Fraction {
    int64_t rest;
    size_t group;
  };
  std::vector<Fraction> fractions;
  int64_t missing = size;
  for (size_t i = 0; i < groups.size(); ++i) {
    // 128 bits, so that the product is exact.
    __extension__ using Wide = __int128;
    const Wide share = static_cast<Wide>(size) * static_cast<Wide>(groups[i].samples.size());
    const auto whole = std::min(static_cast<int64_t>(share / count), groups[i].left);
    groups[i].counts.push_back(whole);
    groups[i].left -= whole;
    missing -= whole;
    fractions.push_back({static_cast<int64_t>(share % count), i});
  }
  std::ranges::stable_sort(fractions, [](const Fraction& a, const Fraction& b) { return a.rest > b.rest; });
  while (missing > 0)
    for (const Fraction& fraction : fractions) {
      LabelGroup& group = groups[fraction.group];
      if (missing == 0 || group.left == 0) continue;
      ++group.counts.back();
      --group.left;
      --missing;
    }
}

}  // namespace

std::vector<std::vector<int64_t>> stratified_split(const std::vector<int64_t>& labels,
                                                   const std::vector<int64_t>& sizes, uint64_t seed) {
  const auto count = static_cast<int64_t>(labels.size());
  int64_t left = count;
  for (const int64_t size : sizes) {
    if (size < 0 || size > left)
      throw ConfigError(cat("[images.stratified_split] the parts must fit into the data set of ", count,
                            " samples; got a part of ", size, " with ", left, " left."));
    left -= size;
  }
  std::map<int64_t, LabelGroup> by_label;
  for (int64_t i = 0; i < count; ++i) by_label[labels[static_cast<size_t>(i)]].samples.push_back(i);
  std::vector<LabelGroup> groups;
  for (auto& [label, group] : by_label) {
    group.left = static_cast<int64_t>(group.samples.size());
    groups.push_back(std::move(group));
  }
  for (const int64_t size : sizes) take_part(groups, size, count);

  std::vector<std::vector<int64_t>> parts(sizes.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto chosen = split_indices(static_cast<int64_t>(groups[g].samples.size()), groups[g].counts,
                                      mix_bits(seed + 0x9e3779b97f4a7c15u) ^ g);
    for (size_t part = 0; part < parts.size(); ++part)
      for (const int64_t index : chosen[part]) parts[part].push_back(groups[g].samples[static_cast<size_t>(index)]);
  }
  for (auto& part : parts) std::ranges::sort(part);
  return parts;
}

}  // namespace fulgur
