#include "fulgur/models/unet.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"
#include "parts/images.h"
#include "parts/initial_weights.h"
#include "sample_pictures.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredPixel = -100;
constexpr double kMostUNetDepth = 12;  // width · 2^12 channels in the middle

[[noreturn]] void throw_pixel_out_of_range(const Tensor& target, int64_t classes) {
  const Tensor wrong = target.lt(0).logical_and(target.ne(kIgnoredPixel)).logical_or(target.ge(classes));
  const Tensor values = target.masked_select(wrong);
  throw DataError(cat("[models.UNet] classes of pixels must be in [0, num_classes = ", classes, ") or -100; got ",
                      values.numel() > 0 ? values[0].item<int64_t>() : kIgnoredPixel,
                      ". Set num_classes to match the data, or fix the masks."));
}

}  // namespace

class UNet::DoubleConvolution : public torch::nn::Module {
 public:
  DoubleConvolution(int64_t in, int64_t out) {
    for (int64_t i = 0; i < 2; ++i) {
      const auto how = torch::nn::Conv2dOptions(i == 0 ? in : out, out, 3).padding(1).bias(false);
      convolutions_.push_back(register_module(cat("conv", i + 1), torch::nn::Conv2d(how)));
      norms_.push_back(register_module(cat("bn", i + 1), nn::BatchNorm2d(out)));
    }
  }
  Tensor forward(const Tensor& input) {
    Tensor x = input;
    for (size_t i = 0; i < convolutions_.size(); ++i) x = norms_[i]->forward(convolutions_[i]->forward(x)).relu_();
    return x;
  }

 private:
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;
};

void UNet::Options::fields(Fields& f) {
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostChannels);
  f(num_classes, "num_classes", "Number of classes of a pixel, the background included.")
      .range(2, detail::kMostChannels);
  f(width, "width", "Channels of the first level; each further level has twice as many.")
      .range(1, detail::kMostChannels / 1000);
  f(depth, "depth", "Number of levels that are pooled.").range(1, kMostUNetDepth);
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
  ClassWeights::field(f, class_weights);
  f(metrics, "metrics", "Metrics of the pixels that validation and test log, such as IoU, which becomes val_iou.");
  f(sample_predictions, "sample_predictions",
    "Images of the first validation batch that each validation logs with their predicted masks; 0: none.")
      .range(0, detail::kMostSamples);
}

UNet::UNet(const Options& options)
    : options_(detail::checked_options(options, "models.UNet")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "UNet")) {
  const auto down = register_module("down", std::make_shared<torch::nn::ModuleListImpl>());
  int64_t channels = options.in_channels, width = options.width;
  for (int64_t i = 0; i < options.depth; ++i, width *= 2) {
    blocks_.push_back(std::make_shared<DoubleConvolution>(channels, width));
    down->push_back(blocks_.back());
    channels = width;
  }
  blocks_.push_back(register_module("middle", std::make_shared<DoubleConvolution>(channels, width)));
  const auto upsample = register_module("upsample", std::make_shared<torch::nn::ModuleListImpl>());
  const auto up = register_module("up", std::make_shared<torch::nn::ModuleListImpl>());
  for (int64_t i = 0; i < options.depth; ++i, width /= 2) {
    const auto how = torch::nn::ConvTranspose2dOptions(width, width / 2, 2).stride(2);
    upsamplings_.emplace_back(how);
    upsample->push_back(upsamplings_.back());
    blocks_.push_back(std::make_shared<DoubleConvolution>(width, width / 2));
    up->push_back(blocks_.back());
  }
  head_ = register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, options.num_classes, 1)));
  for (const auto& [name, value] : unique_parameters(*this))
    if (value.dim() == 4 && value.size(2) == 3) detail::he_normal_of_outputs(value);
  metrics_.use(options.metrics, options.num_classes,
               {.component = "UNet", .logs = {"loss"}, .ignore_index = kIgnoredPixel});
  class_weights_ = ClassWeights(options.class_weights, options.num_classes, "UNet");
}

UNet::~UNet() = default;

Tensor UNet::run_block(size_t block, const Tensor& input) {
  return detail::is_checkpointed(block, checkpoint_every_) ? nn::checkpoint(blocks_[block], input)
                                                           : blocks_[block]->forward(input);
}

Tensor UNet::forward(const Tensor& input) {
  detail::check_images(input, options_.in_channels, int64_t{1} << options_.depth, "UNet");
  const size_t depth = upsamplings_.size();
  std::vector<Tensor> beside;
  Tensor x = input;
  for (size_t i = 0; i < depth; ++i) {
    beside.push_back(run_block(i, x));
    x = at::max_pool2d(beside.back(), 2);
  }
  x = run_block(depth, x);
  for (size_t i = 0; i < depth; ++i) {
    const Tensor& skipped = beside[depth - 1 - i];
    x = upsamplings_[i]->forward(x);
    const int64_t rows = skipped.size(2) - x.size(2), columns = skipped.size(3) - x.size(3);
    if (rows > 0 || columns > 0) x = at::constant_pad_nd(x, {0, columns, 0, rows});
    x = run_block(depth + 1 + i, at::cat({skipped, x}, 1));
  }
  return head_->forward(x);
}

Tensor UNet::loss_of(const Tensor& logits, const Tensor& target, const Tensor& class_weights) const {
  if (target.scalar_type() != at::kLong || target.dim() != 3 || target.size(0) != logits.size(0) ||
      target.size(1) != logits.size(2) || target.size(2) != logits.size(3))
    throw DataError(
        cat("[models.UNet] the classes of pixels must be int64 of shape [", logits.size(0), ", ", logits.size(2), ", ",
            logits.size(3), "]; got ", c10::toString(target.scalar_type()), " of shape ", shape_text(target.sizes()),
            ". The second entry of a batch holds them. SegmentationFolderDataModule and ArrayDataModule make "
            "them int64."));
  try {
    if (class_weights.defined())
      return at::cross_entropy_loss(logits.to(class_weights.scalar_type()), target, class_weights, at::Reduction::Mean,
                                    kIgnoredPixel);
    return at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, kIgnoredPixel);
  } catch (const c10::IndexError&) {
    throw_pixel_out_of_range(target, options_.num_classes);
  }
}

StepOutput UNet::training_step(const Batch& batch, int64_t) {
  const Tensor logits = forward(batch[0]);
  Tensor loss = loss_of(logits, batch[1], class_weights_.on_device_of(logits));
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

Tensor UNet::evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx) {
  const Tensor logits = forward(batch[0]);
  log(stage + "_loss", loss_of(logits, batch[1]), {.prog_bar = true});
  metrics_.update(*this, stage, loader_idx, logits, batch[1]);
  return logits;
}

Outputs UNet::validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) {
  const Tensor logits = evaluate(batch, "val", loader_idx);
  if (!logs_samples(batch_idx, loader_idx)) return {};
  return {{"prediction", logits.argmax(1)}};
}

// Here the outputs are those of all devices, and the batch is whole.
void UNet::on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx, int64_t loader_idx) {
  if (!logs_samples(batch_idx, loader_idx) || run().sanity_checking() || !run().is_global_zero()) return;
  const int64_t count = std::min(options_.sample_predictions, batch.size());
  if (const auto images = detail::picture_of_samples("val_samples", batch[0].narrow(0, 0, count))) log_media(*images);
  const Tensor masks = outputs["prediction"].narrow(0, 0, count);
  if (const auto picture = detail::picture_of_samples("val_masks", masks)) log_media(*picture);
}

Outputs UNet::test_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "test", loader_idx);
  return {};
}

Outputs UNet::predict_step(const Batch& batch, int64_t, int64_t) {
  const auto [probability, prediction] = forward(batch[0]).softmax(1).max(1);
  return {{"prediction", prediction}, {"probability", probability}};
}

[[maybe_unused]] static const bool registered_unet = Registry<LightningModule>::add<UNet>(
    "UNet", "A U-Net for segmentation: cross entropy per pixel, IoU and Dice; any size of image.");

}  // namespace fulgur
