#include "fulgur/core/dataset.h"

#include "fulgur/core/errors.h"
#include "fulgur/core/sampler.h"
#include "fulgur/core/text.h"

namespace fulgur {

Dataset::~Dataset() = default;
Sampler::~Sampler() = default;

std::optional<Batch> Dataset::view(int64_t, int64_t) const { return std::nullopt; }

Batch BatchDataset::prototype() const {
  if (size() == 0) return {};
  const int64_t first = 0;
  return get(c10::ArrayRef<int64_t>(&first, 1), {});
}

void BatchDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const {
  if (indices.empty()) return;
  const Batch part = get(indices, context);
  const auto rows = static_cast<int64_t>(indices.size());
  if (part.entries() != out.entries())
    throw DataError(cat("[core.BatchDataset] get() must return the entries of its first call; got ", part.entries(),
                        " instead of ", out.entries(), "."));
  for (size_t i = 0; i < part.entries(); ++i) {
    const auto& [name, value] = part.entry(i);
    auto& target = out.entry(i).second;
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      Tensor rows_out = std::get<Tensor>(target).narrow(0, first_row, rows);
      if (tensor->sizes() != rows_out.sizes())
        throw DataError(cat("[core.BatchDataset] samples of entry '", name, "' must have one shape; ragged samples belong in a list."));
      rows_out.copy_(*tensor);
    } else if (const auto* tensors = std::get_if<std::vector<Tensor>>(&value)) {
      auto& list = std::get<std::vector<Tensor>>(target);
      list.resize(std::max(list.size(), static_cast<size_t>(first_row + rows)));
      for (size_t r = 0; r < tensors->size(); ++r) list[static_cast<size_t>(first_row) + r] = (*tensors)[r];
    } else {
      auto& list = std::get<std::vector<std::string>>(target);
      const auto& texts = std::get<std::vector<std::string>>(value);
      list.resize(std::max(list.size(), static_cast<size_t>(first_row + rows)));
      for (size_t r = 0; r < texts.size(); ++r) list[static_cast<size_t>(first_row) + r] = texts[r];
    }
  }
}

}  // namespace fulgur
