#include "fulgur/models/classifier.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <c10/util/Exception.h>

#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredLabel = -100;

[[noreturn]] void throw_label_out_of_range(const Tensor& labels, int64_t classes) {
  const Tensor flat = labels.contiguous();
  const auto* values = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i)
    if (values[i] != kIgnoredLabel && (values[i] < 0 || values[i] >= classes))
      throw DataError(cat("[models.classification_loss] labels must be in [0, num_classes = ", classes, "); got ",
                          values[i], " at index ", i,
                          " of the batch. Set num_classes to match the data, or fix the labels."));
  throw DataError(cat("[models.classification_loss] labels must be in [0, num_classes = ", classes, ")."));
}

}  // namespace

Tensor classification_loss(const Tensor& logits, const Tensor& labels) {
  if (labels.scalar_type() != at::kLong || labels.dim() != 1 || labels.size(0) != logits.size(0))
    throw DataError(cat("[models.classification_loss] labels must be int64 of shape [", logits.size(0), "]; got ",
                        c10::toString(labels.scalar_type()), " of shape ", shape_text(labels.sizes()),
                        ". The second entry of a batch holds the labels."));
  try {
    return at::cross_entropy_loss(logits, labels);
  } catch (const c10::IndexError&) {
    // Searched for only after a failure: a check in each step would wait for the device.
    throw_label_out_of_range(labels, logits.size(1));
  }
}

StepOutput Classifier::training_step(const Batch& batch, int64_t) {
  Tensor loss = classification_loss(forward(batch[0]), batch[1]);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

void Classifier::evaluate(const Batch& batch, const char* loss_name, const char* accuracy_name) {
  const Tensor logits = forward(batch[0]);
  log(loss_name, classification_loss(logits, batch[1]), {.prog_bar = true});
  // In double: the mean over batches is then exact to the last digit shown.
  log(accuracy_name, logits.argmax(1).eq(batch[1]).to(at::kDouble).mean(), {.prog_bar = true});
}

Outputs Classifier::validation_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "val_loss", "val_acc");
  return {};
}

Outputs Classifier::test_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "test_loss", "test_acc");
  return {};
}

Outputs Classifier::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor probabilities = forward(batch[0]).softmax(1);
  return {{"probabilities", probabilities}, {"prediction", probabilities.argmax(1)}};
}

}  // namespace fulgur
