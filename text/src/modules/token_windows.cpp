#include "modules/token_windows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

TokenWindows::TokenWindows(std::vector<TokenSpan> spans, How how) : spans_(std::move(spans)), how_(std::move(how)) {
  int64_t windows = 0;
  double weight = 0;
  for (size_t i = 0; i < spans_.size(); ++i) {
    windows += how_.random ? spans_[i].random_starts(how_.block) : spans_[i].packed_windows(how_.block);
    all_.push_back(windows);
    if (!how_.weights.empty()) weighted_.push_back(weight += how_.weights[i]);
  }
}

Batch TokenWindows::prototype() const {
  return Batch({Batch::Entry{"input", at::zeros({1, how_.block}, at::kLong)},
                Batch::Entry{"target", at::zeros({1, how_.block}, at::kLong)}});
}

TokenWindows::Place TokenWindows::place_of(int64_t index, const SampleContext& context) const {
  if (how_.draws == 0) {
    const auto span = std::ranges::upper_bound(all_, index);
    const auto at = static_cast<size_t>(span - all_.begin());
    return {&spans_[at], spans_[at].begin + (index - (at == 0 ? 0 : all_[at - 1])) * how_.block};
  }
  SplitMix64 random = context.random(index);
  size_t at = 0;
  int64_t window = 0;
  if (weighted_.empty()) {
    // By the number of windows: each window of all spans is equally likely.
    window = static_cast<int64_t>(random.below(static_cast<uint64_t>(all_.back())));
    at = static_cast<size_t>(std::ranges::upper_bound(all_, window) - all_.begin());
    window -= at == 0 ? 0 : all_[at - 1];
  } else {
    // The product may round up to the whole weight: then the last folder with a weight is taken.
    const double mark = std::min(random.uniform() * weighted_.back(), std::nextafter(weighted_.back(), 0.0));
    at = static_cast<size_t>(std::ranges::upper_bound(weighted_, mark) - weighted_.begin());
    const int64_t count = all_[at] - (at == 0 ? 0 : all_[at - 1]);
    window = static_cast<int64_t>(random.below(static_cast<uint64_t>(count)));
  }
  return {&spans_[at], spans_[at].begin + (how_.random ? window : window * how_.block)};
}

void TokenWindows::fill(const Place& place, int64_t* input, int64_t* target) const {
  const TokenSpan& span = *place.span;
  const int64_t count = std::min(how_.block, span.end - place.begin - 1);
  span.files->read(place.begin, count, input);
  std::copy(input + 1, input + count, target);
  span.files->read(place.begin + count, 1, target + count - 1);
  std::fill(input + count, input + how_.block, 0);
  std::fill(target + count, target + how_.block, kIgnoredTarget);
  if (how_.cross_documents) return;
  for (int64_t end = span.files->document_end(place.begin); end <= place.begin + count;
       end = span.files->document_end(end)) {
    target[end - 1 - place.begin] = kIgnoredTarget;
    if (end == span.files->info().tokens) break;
  }
}

void TokenWindows::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                        const SampleContext& context) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= size())
      throw DataError(cat("[text.TokenFilesDataModule] the index must be in [0, ", size(), "); got ", indices[i], "."));
    const int64_t row = first_row + static_cast<int64_t>(i);
    fill(place_of(indices[i], context), static_cast<int64_t*>(out[0].select(0, row).mutable_data_ptr()),
         static_cast<int64_t*>(out[1].select(0, row).mutable_data_ptr()));
  }
}

}  // namespace fulgur::detail
