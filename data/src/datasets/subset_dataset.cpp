#include "fulgur/data/subset_dataset.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/splits.h"
#include "sampling/permutation.h"

namespace fulgur {

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> source, std::vector<int64_t> indices)
    : source_(std::move(source)), indices_(std::move(indices)) {
  const int64_t available = source_->size();
  for (size_t i = 0; i < indices_.size(); ++i)
    if (indices_[i] < 0 || indices_[i] >= available)
      throw DataError(cat("[data.SubsetDataset] indices must be in [0, ", available, "); got ", indices_[i],
                          " at position ", i, "."));
}

void SubsetDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                         const SampleContext& context) const {
  std::vector<int64_t> mapped;
  mapped.reserve(indices.size());
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      throw DataError(cat("[data.SubsetDataset] the index must be in [0, ", size(), "); got ", index, "."));
    mapped.push_back(indices_[static_cast<size_t>(index)]);
  }
  source_->read(mapped, first_row, out, context);
}

std::optional<Batch> SubsetDataset::view(int64_t start, int64_t length) const {
  if (start < 0 || length < 0 || start > size() - length)
    throw DataError(
        cat("[data.SubsetDataset] the range must be in [0, ", size(), "); got ", length, " from ", start, "."));
  if (length == 0) return std::nullopt;
  const auto first = static_cast<size_t>(start);
  for (size_t i = 1; i < static_cast<size_t>(length); ++i)
    if (indices_[first + i] != indices_[first] + static_cast<int64_t>(i)) return std::nullopt;
  return source_->view(indices_[first], length);
}

std::vector<std::vector<int64_t>> split_indices(int64_t dataset_size, const std::vector<int64_t>& sizes,
                                                uint64_t seed) {
  int64_t left = dataset_size;
  for (const int64_t size : sizes) {
    if (size < 0 || size > left)
      throw ConfigError(cat("[data.split] the parts must fit into the dataset of ", dataset_size,
                            " samples; got a part of ", size, " with ", left, " left."));
    left -= size;
  }
  // A stream that no epoch of a RandomSampler uses.
  constexpr uint64_t kSplitStream = 0x73706c6974000000u;
  const std::vector<int64_t> order = random_permutation(dataset_size, seed, kSplitStream);
  std::vector<std::vector<int64_t>> parts;
  auto from = order.begin();
  for (const int64_t size : sizes) {
    parts.emplace_back(from, from + size);
    std::ranges::sort(parts.back());
    from += size;
  }
  return parts;
}

std::vector<std::shared_ptr<SubsetDataset>> split(const std::shared_ptr<const Dataset>& dataset,
                                                  const std::vector<int64_t>& sizes, uint64_t seed) {
  std::vector<std::shared_ptr<SubsetDataset>> parts;
  for (auto& indices : split_indices(dataset->size(), sizes, seed))
    parts.push_back(std::make_shared<SubsetDataset>(dataset, std::move(indices)));
  return parts;
}

std::vector<std::shared_ptr<SubsetDataset>> random_split(const std::shared_ptr<const Dataset>& dataset,
                                                         const std::vector<double>& shares, uint64_t seed) {
  return split(dataset, part_sizes(dataset->size(), shares), seed);
}

}  // namespace fulgur
