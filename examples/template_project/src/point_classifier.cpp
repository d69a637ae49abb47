#include "point_classifier.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tanh.h>

PointClassifier::PointClassifier(const Options& options)
    : in_(2, options.hidden), middle_(options.hidden, options.hidden), out_(options.hidden, options.num_classes) {
  register_module("in", in_);
  register_module("middle", middle_);
  register_module("out", out_);
}

fulgur::Tensor PointClassifier::forward(const fulgur::Tensor& points) {
  return out_(at::tanh(middle_(at::tanh(in_(points)))));
}

fulgur::StepOutput PointClassifier::training_step(const fulgur::Batch& batch, int64_t) {
  const fulgur::Tensor loss = at::cross_entropy_loss(forward(batch["point"]), batch["circle"]);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

fulgur::Outputs PointClassifier::validation_step(const fulgur::Batch& batch, int64_t, int64_t) {
  const fulgur::Tensor scores = forward(batch["point"]);
  log("val_loss", at::cross_entropy_loss(scores, batch["circle"]));
  log("val_acc", scores.argmax(1).eq(batch["circle"]).to(at::kFloat).mean(), {.prog_bar = true});
  return {};
}

fulgur::Outputs PointClassifier::predict_step(const fulgur::Batch& batch, int64_t, int64_t) {
  return {{"circle", forward(batch["point"]).argmax(1)}};
}

FULGUR_REGISTER(fulgur::LightningModule, PointClassifier, "A small network for points in the plane.");
