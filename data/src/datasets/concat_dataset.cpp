#include "fulgur/data/concat_dataset.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string layout(const Batch& prototype) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : prototype) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor != nullptr)
      entries.push_back(cat(name, " ", at::toString(tensor->scalar_type()), " ", shape_text(tensor->sizes().slice(1))));
    else
      entries.push_back(cat(name, std::holds_alternative<std::vector<Tensor>>(value) ? " list of tensors" : " texts"));
  }
  return join(entries);
}

}  // namespace

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) throw DataError("[data.ConcatDataset] at least one dataset is needed; got none.");
  std::string first;
  int64_t end = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    ends_.push_back(end += parts_[i]->size());
    if (parts_[i]->size() == 0) continue;
    const std::string here = layout(parts_[i]->prototype());
    if (first.empty()) first = here;
    if (here != first)
      throw DataError(cat("[data.ConcatDataset] all parts must have the same entries; part ", i, " has ", here,
                          ", but the parts before it have ", first, "."));
  }
}

Batch ConcatDataset::prototype() const {
  for (const auto& part : parts_)
    if (part->size() > 0) return part->prototype();
  return {};
}

size_t ConcatDataset::part_of(int64_t index) const {
  if (index < 0 || index >= size())
    throw DataError(cat("[data.ConcatDataset] the index must be in [0, ", size(), "); got ", index, "."));
  return static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
}

void ConcatDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                         const SampleContext& context) const {
  std::vector<int64_t> local;
  for (size_t i = 0; i < indices.size();) {
    const size_t part = part_of(indices[i]);
    local.clear();
    const size_t from = i;
    while (i < indices.size() && part_of(indices[i]) == part) local.push_back(indices[i++] - begin_of(part));
    parts_[part]->read(local, first_row + static_cast<int64_t>(from), out, context);
  }
}

std::optional<Batch> ConcatDataset::view(int64_t start, int64_t length) const {
  if (start < 0 || length < 0 || start > size() - length)
    throw DataError(
        cat("[data.ConcatDataset] the range must be in [0, ", size(), "); got ", length, " from ", start, "."));
  if (length == 0) return std::nullopt;
  const size_t part = part_of(start);
  if (part_of(start + length - 1) != part) return std::nullopt;
  return parts_[part]->view(start - begin_of(part), length);
}

}  // namespace fulgur
