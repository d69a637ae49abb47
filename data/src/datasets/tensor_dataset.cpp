#include "fulgur/data/tensor_dataset.h"

#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// Fixed sizes compile to single moves; labels are 8 bytes per row.
void copy_rows(const char* from, char* to, size_t row_bytes, c10::ArrayRef<int64_t> indices) {
  const auto copy = [&](auto bytes) {
    for (const int64_t index : indices) {
      std::memcpy(to, from + static_cast<size_t>(index) * bytes, bytes);
      to += bytes;
    }
  };
  if (row_bytes == 8)
    copy(std::integral_constant<size_t, 8>{});
  else if (row_bytes == 4)
    copy(std::integral_constant<size_t, 4>{});
  else if (row_bytes > 0)
    copy(row_bytes);
}

}  // namespace

TensorDataset::TensorDataset(Batch samples) : samples_(std::move(samples)) {
  if (samples_.empty()) throw DataError("[data.TensorDataset] at least one tensor is needed; got none.");
  for (size_t i = 0; i < samples_.entries(); ++i) {
    auto& [name, value] = samples_.entry(i);
    auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr || !tensor->defined() || tensor->dim() < 1 || !tensor->is_cpu())
      throw DataError(cat("[data.TensorDataset] entries must be CPU tensors with samples in dimension 0; '", name,
                          "' is not one."));
    if (i == 0) size_ = tensor->size(0);
    if (tensor->size(0) != size_)
      throw DataError(cat("[data.TensorDataset] all entries must have the same number of samples; '",
                          samples_.entry(0).first, "' has ", size_, ", '", name, "' has ", tensor->size(0), "."));
    *tensor = tensor->detach().contiguous();
  }
}

Batch TensorDataset::prototype() const { return size_ == 0 ? Batch() : samples_.narrow(0, 1); }

void TensorDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext&) const {
  for (const int64_t index : indices)
    if (index < 0 || index >= size_)
      throw DataError(cat("[data.TensorDataset] the index must be in [0, ", size_, "); got ", index, "."));
  for (size_t i = 0; i < samples_.entries(); ++i) {
    const Tensor& source = samples_[i];
    if (auto* list = std::get_if<std::vector<Tensor>>(&out.entry(i).second)) {
      for (size_t row = 0; row < indices.size(); ++row)
        list->at(static_cast<size_t>(first_row) + row) = source.select(0, indices[row]);
      continue;
    }
    const Tensor& target = out[i];
    if (!target.is_contiguous() || target.scalar_type() != source.scalar_type() ||
        target.sizes().slice(1) != source.sizes().slice(1) ||
        target.size(0) < first_row + static_cast<int64_t>(indices.size()))
      throw Error(cat("[data.TensorDataset] the batch to fill must have the prototype's dtypes and shapes; entry '",
                      samples_.entry(i).first, "' does not."));
    const size_t row_bytes = static_cast<size_t>(source.numel() / std::max<int64_t>(size_, 1)) * source.element_size();
    copy_rows(static_cast<const char*>(source.const_data_ptr()),
              static_cast<char*>(target.mutable_data_ptr()) + static_cast<size_t>(first_row) * row_bytes, row_bytes,
              indices);
  }
}

std::optional<Batch> TensorDataset::view(int64_t start, int64_t length) const {
  if (start < 0 || length < 0 || start > size_ - length)
    throw DataError(
        cat("[data.TensorDataset] the range must be in [0, ", size_, "); got ", length, " from ", start, "."));
  return samples_.narrow(start, length);
}

}  // namespace fulgur
