#include "fulgur/core/contracts/dataset.h"

#include <algorithm>

#include "fulgur/core/contracts/sampler.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

Dataset::~Dataset() = default;
Sampler::~Sampler() = default;
BatchSampler::~BatchSampler() = default;
std::shared_ptr<const BatchSampler> BatchSampler::shared_evenly(UnevenShares) const { return nullptr; }

SplitMix64 SampleContext::random(int64_t index) const {
  // Mixed one after the other: plain sums would collide for different (seed, epoch, index).
  const uint64_t epoch_seed = mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(epoch));
  return SplitMix64(mix_bits(epoch_seed + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(index));
}

std::optional<Batch> Dataset::view(int64_t, int64_t) const { return std::nullopt; }

void IterableDataset::set_share(int64_t, int64_t world_size) {
  if (world_size > 1)
    throw DistributedError(cat("[core.IterableDataset] each of ", world_size,
                               " processes must read its own part of the stream, or all would train on the same "
                               "samples. Override set_share()."));
}

namespace {

template <class Item>
void copy_list(const std::vector<Item>& from, std::vector<Item>& to, int64_t first_row, int64_t rows,
               const std::string& name) {
  if (static_cast<int64_t>(from.size()) != rows)
    throw DataError(cat("[core.BatchDataset] get() must return an item for each index; entry '", name, "' has ",
                        from.size(), " items for ", rows, " indices."));
  // No resize if the slots exist: other threads write other rows.
  if (to.size() < static_cast<size_t>(first_row + rows)) to.resize(static_cast<size_t>(first_row + rows));
  std::copy(from.begin(), from.end(), to.begin() + first_row);
}

}  // namespace

Batch BatchDataset::prototype() const {
  if (size() == 0) return {};
  const int64_t first = 0;
  return get(c10::ArrayRef<int64_t>(&first, 1), {});
}

void BatchDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                        const SampleContext& context) const {
  if (indices.empty()) return;
  const Batch part = get(indices, context);
  const auto rows = static_cast<int64_t>(indices.size());
  if (part.entries() != out.entries())
    throw DataError(cat("[core.BatchDataset] get() must return the entries of its first call; got ", part.entries(),
                        " instead of ", out.entries(), "."));
  for (size_t i = 0; i < part.entries(); ++i) {
    const auto& [name, value] = part.entry(i);
    auto& target = out.entry(i).second;
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      copy_list(*texts, std::get<std::vector<std::string>>(target), first_row, rows, name);
    } else if (auto* list = std::get_if<std::vector<Tensor>>(&target)) {
      if (const auto* tensor = std::get_if<Tensor>(&value))
        copy_list(tensor->unbind(0), *list, first_row, rows, name);
      else
        copy_list(std::get<std::vector<Tensor>>(value), *list, first_row, rows, name);
    } else {
      const Tensor& tensor = std::get<Tensor>(value);
      Tensor rows_out = std::get<Tensor>(target).narrow(0, first_row, rows);
      if (tensor.sizes() != rows_out.sizes())
        throw DataError(cat("[core.BatchDataset] samples of entry '", name, "' must have the same shape; got ",
                            shape_text(tensor.sizes()), " for ", rows, " samples, the first one had ",
                            shape_text(rows_out.sizes().slice(1)), ". Ragged samples belong in a list."));
      rows_out.copy_(tensor);
    }
  }
}

}  // namespace fulgur
