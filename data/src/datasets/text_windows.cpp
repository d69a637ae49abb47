#include "datasets/text_windows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

TextWindows::TextWindows(Tensor tokens, const Cut& cut) : tokens_(std::move(tokens)), cut_(cut) {}

int64_t TextWindows::size() const {
  return cut_.random > 0 ? cut_.random : (cut_.end - cut_.begin - 1 - cut_.block) / cut_.stride + 1;
}

Batch TextWindows::prototype() const {
  return Batch({Batch::Entry{"input", at::zeros({1, cut_.block}, at::kLong)},
                Batch::Entry{"target", at::zeros({1, cut_.block}, at::kLong)}});
}

int64_t TextWindows::begin_of(int64_t index, const SampleContext& context) const {
  if (cut_.random == 0) return cut_.begin + index * cut_.stride;
  return cut_.begin +
         static_cast<int64_t>(context.random(index).below(static_cast<uint64_t>(cut_.end - cut_.begin - cut_.block)));
}

void TextWindows::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                       const SampleContext& context) const {
  const auto fill = [&](const auto* tokens) {
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0 || indices[i] >= size())
        throw DataError(cat("[data.TextDataModule] the index must be in [0, ", size(), "); got ", indices[i], "."));
      const auto* from = tokens + begin_of(indices[i], context);
      for (const size_t ahead : {size_t{0}, size_t{1}}) {
        auto* to = static_cast<int64_t*>(out[ahead].select(0, first_row + static_cast<int64_t>(i)).mutable_data_ptr());
        std::copy(from + ahead, from + ahead + cut_.block, to);
      }
    }
  };
  if (tokens_.scalar_type() == at::kByte)
    fill(tokens_.const_data_ptr<uint8_t>());
  else
    fill(tokens_.const_data_ptr<int32_t>());
}

}  // namespace fulgur
