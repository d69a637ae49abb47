// What the options of the models for images do.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/state/rng.h"
#include "fulgur/metrics/stat_scores.h"
#include "fulgur/models/convnext.h"
#include "fulgur/models/resnet.h"
#include "fulgur/models/unet.h"
#include "fulgur/models/vision_transformer.h"
#include "fulgur/trainer/config.h"
#include "models/training.h"
#include "parts/images.h"
#include "parts/initial_weights.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"
#include "trainer/boring.h"

namespace vision_models_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

ResNet::Options small_resnet(int64_t depth = 20) {
  ResNet::Options options;
  options.depth = depth;
  options.width = 4;
  options.num_classes = 3;
  return options;
}

VisionTransformer::Options small_vit() {
  VisionTransformer::Options options;
  options.image_size = 8;
  options.patch_size = 4;
  options.num_layers = 3;
  options.num_heads = 2;
  options.hidden_dim = 8;
  options.mlp_dim = 12;
  options.num_classes = 3;
  return options;
}

ConvNeXt::Options small_convnext() {
  ConvNeXt::Options options;
  options.depths = {1, 2};
  options.widths = {4, 6};
  options.num_classes = 3;
  options.layer_scale = 0.5;
  return options;
}

UNet::Options small_unet() {
  UNet::Options options;
  options.num_classes = 3;
  options.width = 4;
  options.depth = 2;
  return options;
}

Batch classes_of(int64_t samples, int64_t size) {
  return Batch({at::randn({samples, 3, size, size}), at::arange(samples, at::kLong).remainder(3)});
}

Batch masks_of(int64_t samples, int64_t height, int64_t width) {
  return Batch({at::randn({samples, 3, height, width}), at::randint(3, {samples, height, width}, at::kLong)});
}

template <class Model>
int64_t parameter_count(const Model& model) {
  int64_t count = 0;
  for (const auto& parameter : unique_parameters(model)) count += parameter.value.numel();
  return count;
}

// Gradients of two steps on one batch, in train mode.
template <class Model>
std::vector<Tensor> gradients_with(typename Model::Options options, const Batch& batch, const std::string& how) {
  options.activation_checkpointing = how;
  seed_everything(3);
  Model model(options);
  std::vector<Tensor> all;
  for (int step = 0; step < 2; ++step) {
    model.training_step(batch, step).loss.backward();
    for (const auto& parameter : unique_parameters(model)) all.push_back(parameter.value.grad().clone());
    for (const Tensor& buffer : model.buffers()) all.push_back(buffer.clone());
  }
  return all;
}

template <class Model>
void check_checkpointing(const typename Model::Options& options, const Batch& batch) {
  const auto plain = gradients_with<Model>(options, batch, "none");
  for (const char* how : {"all", "every_2"}) {
    CAPTURE(how);
    const auto checkpointed = gradients_with<Model>(options, batch, how);
    REQUIRE(plain.size() == checkpointed.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], checkpointed[i]));
  }
  CHECK_THAT(message_of<ConfigError>([&] { gradients_with<Model>(options, batch, "some"); }),
             ContainsSubstring("none, all or every_N"));
}

template <class Model>
void check_channels_last(Model& model, const Tensor& images) {
  const at::NoGradGuard no_grad;
  model.eval();
  const Tensor plain = model.forward(images);
  for (const Tensor& weight : model.parameters())
    if (weight.dim() == 4) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  const Tensor other = model.forward(images.contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(at::allclose(plain, other, 1e-4, 1e-5));
  CHECK(other.abs().max().item<double>() > 0);
}

}  // namespace

TEST_CASE("a ResNet has the depth, the names and the shortcuts that its options say") {
  // Numbers of torchvision with 1000 classes.
  const auto of_imagenet = [](int64_t depth) {
    ResNet::Options options;
    options.depth = depth;
    options.num_classes = 1000;
    return parameter_count(ResNet(options));
  };
  CHECK(of_imagenet(18) == 11'689'512);
  CHECK(of_imagenet(34) == 21'797'672);
  CHECK(of_imagenet(50) == 25'557'032);
  // He et al. 2016, table 6: 0.27 M, 0.46 M, 0.85 M.
  const auto of_cifar = [](int64_t depth) {
    ResNet::Options options;
    options.depth = depth;
    return parameter_count(ResNet(options));
  };
  CHECK(of_cifar(20) == 269'722);
  CHECK(of_cifar(32) == 464'154);
  CHECK(of_cifar(56) == 853'018);
  ResNet::Options b = small_resnet();
  b.shortcut = ResNetShortcut::B;
  CHECK(ResNet(b).named_parameters().contains("layer2.0.downsample.0.weight"));
  CHECK_FALSE(ResNet(small_resnet()).named_parameters().contains("layer2.0.downsample.0.weight"));
  CHECK_THAT(message_of<ConfigError>([] { ResNet(small_resnet(19)); }), ContainsSubstring("depth"));
}

TEST_CASE("zero_init_residual: each block of a ResNet begins as its shortcut") {
  ResNet::Options options = small_resnet();
  ResNet plain(options);
  options.zero_init_residual = true;
  ResNet zero(options);
  for (const char* name : {"layer1.0.bn2.weight", "layer3.2.bn2.weight"}) {
    CHECK(zero.named_parameters()[name].count_nonzero().item<int64_t>() == 0);
    CHECK(plain.named_parameters()[name].count_nonzero().item<int64_t>() > 0);
  }
  CHECK(zero.named_parameters()["layer1.0.bn1.weight"].count_nonzero().item<int64_t>() > 0);
}

TEST_CASE("weights of models for images begin with the reference's distributions") {
  seed_everything(4);
  ResNet resnet(ResNet::Options{});
  const auto weights = resnet.named_parameters();
  CHECK(std::abs(weights["layer3.0.conv2.weight"].std().item<double>() - std::sqrt(2.0 / (256 * 9))) < 5e-4);
  Tensor cut = at::zeros({200'000});
  fulgur::detail::trunc_normal(cut, 1.0);
  CHECK(cut.abs().max().item<double>() <= 2);
  CHECK(std::abs(cut.std().item<double>() - 0.8796) < 0.01);  // of the standard normal between -2 and 2
  CHECK(std::abs(cut.mean().item<double>()) < 0.01);
  Tensor narrow = at::zeros({1 << 24});
  fulgur::detail::trunc_normal(narrow, 0.02);
  CHECK(narrow.abs().max().item<double>() < 0.02 * 6);
  CHECK(std::abs(narrow.std().item<double>() - 0.02) < 1e-4);
  VisionTransformer vit(small_vit());
  CHECK(vit.named_parameters()["heads.head.weight"].count_nonzero().item<int64_t>() == 0);
  CHECK(vit.named_parameters()["class_token"].count_nonzero().item<int64_t>() == 0);
  const Tensor in_proj = vit.named_parameters()["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"];
  CHECK(in_proj.abs().max().item<double>() <= std::sqrt(6.0 / (3 * 8 + 8)));
  ConvNeXt convnext(small_convnext());
  CHECK(convnext.named_parameters()["features.1.0.layer_scale"].eq(0.5).all().item<bool>());
  CHECK(convnext.named_parameters()["features.1.0.block.0.bias"].count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("models for images can overfit a batch") {
  seed_everything(5);
  ResNet resnet(small_resnet());
  const Batch small = classes_of(6, 8);
  CHECK(test::descend(resnet, small, 60, 0.1).back() < 0.1);
  VisionTransformer vit(small_vit());
  CHECK(test::descend(vit, small, 200, 0.1).back() < 0.2);
  ConvNeXt::Options still = small_convnext();
  still.stochastic_depth = 0;
  ConvNeXt convnext(still);
  CHECK(test::descend(convnext, classes_of(6, 16), 200, 0.1).back() < 0.3);
  UNet unet(small_unet());
  const Batch masks = masks_of(2, 9, 8);
  CHECK(test::descend(unet, masks, 200, 0.5).back() < 0.4);
  unet.eval();
  const Outputs outputs = unet.predict_step(masks, 0, 0);
  CHECK(outputs["prediction"].sizes() == masks[1].sizes());
  CHECK(outputs["prediction"].scalar_type() == at::kLong);
  CHECK(outputs["probability"].sizes() == masks[1].sizes());
}

TEST_CASE("activation_checkpointing of models for images gives the same bits, buffers and random numbers too") {
  seed_everything(6);
  check_checkpointing<ResNet>(small_resnet(), classes_of(4, 8));
  VisionTransformer::Options vit = small_vit();
  vit.dropout = 0.3;
  check_checkpointing<VisionTransformer>(vit, classes_of(4, 8));
  ConvNeXt::Options convnext = small_convnext();
  convnext.stochastic_depth = 0.5;
  check_checkpointing<ConvNeXt>(convnext, classes_of(4, 16));
  check_checkpointing<UNet>(small_unet(), masks_of(2, 9, 8));
}

TEST_CASE("models for images give the same in channels-last memory") {
  seed_everything(7);
  ResNet resnet(small_resnet());
  check_channels_last(resnet, at::randn({2, 3, 9, 8}));
  ResNet::Options with_stem = small_resnet(18);
  ResNet imagenet(with_stem);
  check_channels_last(imagenet, at::randn({2, 3, 33, 20}));
  VisionTransformer vit(small_vit());
  {
    const at::NoGradGuard no_grad;
    vit.named_parameters()["heads.head.weight"].normal_();
  }
  check_channels_last(vit, at::randn({2, 3, 8, 8}));
  ConvNeXt convnext(small_convnext());
  check_channels_last(convnext, at::randn({2, 3, 16, 17}));
  UNet unet(small_unet());
  check_channels_last(unet, at::randn({2, 3, 9, 7}));
}

TEST_CASE("dropout and stochastic depth act in training only, and per sample") {
  seed_everything(8);
  const Tensor ones = at::ones({2000, 2, 3});
  const Tensor dropped = fulgur::detail::drop_paths(ones, 0.25, /*training=*/true);
  // Each sample as a whole is 0 or 1 / 0.75.
  CHECK(at::equal(dropped.amax({1, 2}), dropped.amin({1, 2})));
  CHECK(dropped.flatten(1)
            .select(1, 0)
            .ne(0)
            .logical_and(dropped.flatten(1).select(1, 0).sub(1 / 0.75).abs().gt(1e-6))
            .sum()
            .item<int64_t>() == 0);
  CHECK(std::abs(dropped.eq(0).to(at::kDouble).mean().item<double>() - 0.25) < 0.03);
  CHECK(at::equal(fulgur::detail::drop_paths(ones, 0.25, /*training=*/false), ones));
  CHECK(fulgur::detail::drop_paths(ones, 1.0, true).count_nonzero().item<int64_t>() == 0);

  ConvNeXt::Options options = small_convnext();
  options.stochastic_depth = 1;  // the last block is left out, the first never
  ConvNeXt convnext(options);
  const Tensor images = at::randn({4, 3, 16, 16});
  convnext.forward(images).sum().backward();
  CHECK(convnext.named_parameters()["features.3.1.layer_scale"].grad().count_nonzero().item<int64_t>() == 0);
  CHECK(convnext.named_parameters()["features.1.0.layer_scale"].grad().count_nonzero().item<int64_t>() > 0);
  convnext.eval();
  CHECK(at::equal(convnext.forward(images), convnext.forward(images)));

  for (const bool of_attention : {false, true}) {
    VisionTransformer::Options vit_options = small_vit();
    (of_attention ? vit_options.attention_dropout : vit_options.dropout) = 0.5;
    VisionTransformer vit(vit_options);
    {
      const at::NoGradGuard no_grad;
      vit.named_parameters()["heads.head.weight"].normal_();
    }
    const Tensor small = at::randn({4, 3, 8, 8});
    CHECK_FALSE(at::equal(vit.forward(small), vit.forward(small)));
    vit.eval();
    CHECK(at::equal(vit.forward(small), vit.forward(small)));
  }
}

TEST_CASE("models for images name the shape, the dtype and the options that do not fit") {
  ResNet resnet(small_resnet());
  CHECK_THAT(message_of<ConfigError>([&] {
               resnet.forward(at::randn({2, 1, 8, 8}));
             }),
             ContainsSubstring("ResNet") && ContainsSubstring("[N, 3, H, W]") && ContainsSubstring("[2, 1, 8, 8]"));
  CHECK_THAT(message_of<ConfigError>([&] {
               resnet.forward(at::zeros({2, 3, 8, 8}, at::kByte));
             }),
             ContainsSubstring("Byte"));
  VisionTransformer vit(small_vit());
  CHECK_THAT(message_of<ConfigError>([&] {
               vit.forward(at::randn({2, 3, 8, 12}));
             }),
             ContainsSubstring("8 x 8") && ContainsSubstring("8 x 12"));
  VisionTransformer::Options patches = small_vit();
  patches.patch_size = 3;
  CHECK_THAT(message_of<ConfigError>([&] { VisionTransformer{patches}; }), ContainsSubstring("patch_size 3"));
  VisionTransformer::Options heads = small_vit();
  heads.num_heads = 3;
  CHECK_THAT(message_of<ConfigError>([&] { VisionTransformer{heads}; }), ContainsSubstring("num_heads 3"));
  ConvNeXt convnext(small_convnext());
  CHECK_THAT(message_of<ConfigError>([&] { convnext.forward(at::randn({2, 3, 7, 16})); }), ContainsSubstring("7 x 16"));
  ConvNeXt::Options stages = small_convnext();
  stages.depths = {1};
  CHECK_THAT(message_of<ConfigError>([&] { ConvNeXt{stages}; }), ContainsSubstring("1 depths and 2 widths"));
  UNet unet(small_unet());
  CHECK_THAT(message_of<ConfigError>([&] { unet.forward(at::randn({2, 3, 3, 8})); }), ContainsSubstring("3 x 8"));
  const Batch masks = masks_of(2, 8, 8);
  CHECK_THAT(message_of<DataError>([&] {
               unet.training_step(Batch({masks[0], masks[1].narrow(1, 0, 4)}), 0);
             }),
             ContainsSubstring("[2, 8, 8]") && ContainsSubstring("[2, 4, 8]"));
  CHECK_THAT(message_of<DataError>([&] {
               unet.training_step(Batch({masks[0], masks[1] + 3}), 0);
             }),
             ContainsSubstring("num_classes = 3") && ContainsSubstring("got "));
}

TEST_CASE("a UNet keeps the size of images that 2^depth does not divide") {
  UNet unet(small_unet());
  for (const int64_t height : {4, 5, 6, 7, 13})
    for (const int64_t width : {4, 9, 11}) {
      CAPTURE(height, width);
      CHECK(unet.forward(at::randn({2, 3, height, width})).sizes() == at::IntArrayRef({2, 3, height, width}));
    }
}

TEST_CASE("a UNet logs IoU and Dice of all pixels without those of -100, and pictures on request") {
  seed_everything(9);
  const test::TemporaryFolder folder;
  UNet::Options options = small_unet();
  options.sample_predictions = 2;
  const auto model = std::make_shared<UNet>(options);
  Batch samples{{"image", at::randn({6, 3, 8, 9})}, {"mask", at::randint(3, {6, 8, 9}, at::kLong)}};
  samples[1].narrow(1, 0, 2).fill_(-100);
  TensorDataModule::Sets sets;
  sets.val = sets.test = samples;
  const auto data = std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 4});
  TrainerComponents components;
  const auto logger = std::make_shared<MemoryLogger>();
  components.loggers = {logger};
  Trainer trainer(test::quiet(folder), components);
  const EvalReport validated = trainer.validate(model, data), tested = trainer.test(model, data);
  model->eval();
  const at::NoGradGuard no_grad;
  const Tensor logits = model->forward(samples[0]);
  metrics::IoU iou({.num_classes = 3, .ignore_index = -100});
  metrics::Dice dice({.num_classes = 3, .ignore_index = -100});
  iou.update(logits, samples[1]);
  dice.update(logits, samples[1]);
  CHECK(validated.metric("val_iou") == iou.compute().item<double>());
  CHECK(validated.metric("val_dice") == dice.compute().item<double>());
  CHECK(tested.metric("test_iou") == iou.compute().item<double>());
  REQUIRE(logger->media.size() == 2);
  const auto& picture = std::get<ImageRecord>(logger->media[0].record);
  const auto& masks = std::get<ImageRecord>(logger->media[1].record);
  CHECK(picture.name == "val_samples");
  CHECK(picture.pixels.sizes() == at::IntArrayRef({3, 8, 2 * 10 - 1}));
  CHECK(masks.name == "val_masks");
  CHECK(masks.pixels.sizes() == at::IntArrayRef({1, 8, 2 * 10 - 1}));

  CHECK_THAT(describe_component("UNet"), ContainsSubstring("[IoU, Dice]"));
  UNet::Options bare = small_unet();
  bare.metrics = {};
  const EvalReport without = Trainer(test::quiet(folder)).validate(std::make_shared<UNet>(bare), data);
  CHECK_THROWS(without.metric("val_iou"));
}

}  // namespace vision_models_test
