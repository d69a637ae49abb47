#include "predictions/predicted_share.h"

#include <ATen/ops/empty.h>

#include <variant>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

Tensor in_one_tensor(std::vector<Tensor> parts, int64_t rows) {
  std::vector<int64_t> sizes = parts.front().sizes().vec();
  sizes[0] = rows;
  Tensor whole = at::empty(sizes, parts.front().options());
  int64_t row = 0;
  for (Tensor& part : parts) {
    whole.narrow(0, row, part.size(0)).copy_(part);
    row += part.size(0);
    part.reset();
  }
  return whole;
}

// The outputs after the numbers of the samples, if the batch has them.
Outputs with_index(const Outputs& outputs, int64_t samples, const Batch& batch) {
  constexpr const char* kIndex = "index";
  if (outputs.empty() || outputs.contains(kIndex) || !batch.contains(kIndex)) return outputs;
  for (const auto& [name, value] : batch) {
    const auto* const index = std::get_if<Tensor>(&value);
    if (name != kIndex || !index || index->scalar_type() != at::kLong || index->dim() != 1 || index->size(0) != samples)
      continue;
    Outputs all{{name, *index}};
    for (const auto& [output, rows] : outputs) all.add(output, rows);
    return all;
  }
  return outputs;
}

std::string row_text(const Tensor& value) {
  return cat(c10::toString(value.scalar_type()), " ", shape_text(value.sizes().slice(1)));
}

}  // namespace

void PredictedBatches::add(const Outputs& outputs, int64_t samples, const Batch& batch) {
  size_t index = 0;
  const Outputs all = with_index(outputs, samples, batch);
  for (const auto& [name, value] : all) {
    if (value.dim() == 0 || value.size(0) != samples)
      throw Error(cat("[trainer.predict] output '", name, "' must have one row per sample (", samples, "); got ",
                      value.dim() == 0 ? "a scalar" : cat(value.size(0), " rows"), "."));
    if (value.layout() != at::kStrided)
      throw Error(cat("[trainer.predict] output '", name, "' must be dense; call to_dense()."));
    if (batches_ == 0) columns_.emplace_back(name, std::vector<Tensor>{});
    if (index >= columns_.size() || columns_[index].first != name)
      throw Error(cat("[trainer.predict] every predict_step must return the same outputs; got '", name,
                      "', but the first batch had '", index < columns_.size() ? columns_[index].first : "nothing",
                      "'."));
    std::vector<Tensor>& parts = columns_[index++].second;
    if (!parts.empty() && row_text(value) != row_text(parts.front()))
      throw Error(cat("[trainer.predict] every predict_step must return the same outputs; rows of '", name, "' are ",
                      row_text(value), ", but those of the first batch are ", row_text(parts.front()), "."));
    parts.push_back(value.to(at::kCPU));
  }
  if (index < columns_.size())
    throw Error(cat("[trainer.predict] every predict_step must return the same outputs; '", columns_[index].first,
                    "', which the first batch had, is missing."));
  add_texts(outputs, samples, batch);
  ++batches_;
  samples_ += samples;
}

void PredictedBatches::add_texts(const Outputs& outputs, int64_t samples, const Batch& batch) {
  if (outputs.empty()) return;
  size_t place = 0;
  for (const auto& [name, value] : batch) {
    const auto* const texts = std::get_if<std::vector<std::string>>(&value);
    if (!texts || static_cast<int64_t>(texts->size()) != samples || outputs.contains(name)) continue;
    if (batches_ == 0) texts_.emplace_back(name, std::vector<std::string>{});
    if (place >= texts_.size() || texts_[place].first != name)
      throw Error(cat("[trainer.predict] every batch must have the same texts; got '", escape_controls(name),
                      "', but the first batch had '",
                      place < texts_.size() ? escape_controls(texts_[place].first) : "nothing", "'."));
    auto& all = texts_[place++].second;
    all.insert(all.end(), texts->begin(), texts->end());
  }
  if (place < texts_.size())
    throw Error(cat("[trainer.predict] every batch must have the same texts; '", escape_controls(texts_[place].first),
                    "', which the first batch had, is missing."));
}

PredictedShare PredictedBatches::take(bool in_turns) {
  PredictedShare share;
  share.samples = samples_;
  share.in_turns = in_turns;
  for (auto& [name, parts] : columns_) share.outputs.add(name, in_one_tensor(std::move(parts), samples_));
  columns_.clear();
  share.texts = std::exchange(texts_, {});
  return share;
}

}  // namespace fulgur::detail
