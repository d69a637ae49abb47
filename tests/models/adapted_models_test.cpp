// Adapters in the models of Fulgur: the same numbers as in Python, and a use in each linear layer.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/adapters.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/loggers/memory_logger.h"
#include "fulgur/models/bert_classifier.h"
#include "fulgur/models/gpt.h"
#include "fulgur/models/mlp_classifier.h"
#include "fulgur/models/vision_transformer.h"
#include "fulgur/nn/lora.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/load_from_checkpoint.h"
#include "fulgur/trainer/trainer.h"
#include "fulgur/trainer/yaml.h"
#include "models/formula.h"
#include "support/temporary_folder.h"

namespace adapted_models_test {

using namespace fulgur;
using test::TemporaryFolder;

namespace {

Tensor sines(int64_t k, at::IntArrayRef shape) {
  const Tensor values =
      0.3 * at::sin(static_cast<double>(k) + 0.7 * at::arange(c10::multiply_integers(shape), at::kDouble));
  return values.view(shape);
}

// The GPT of make_adapters_baseline.py.
std::shared_ptr<GPT> twin_of(const nlohmann::json& baseline) {
  auto model = std::make_shared<GPT>(GPT::Options{.vocab_size = baseline.at("vocab_size"),
                                                  .block_size = baseline.at("block_size"),
                                                  .n_layer = baseline.at("n_layer"),
                                                  .n_head = baseline.at("n_head"),
                                                  .n_embd = baseline.at("n_embd")});
  convert_floating(*model, at::kDouble);
  std::map<std::string, Tensor> parameters;
  for (const auto& [name, value] : unique_parameters(*model))
    parameters.emplace(name == "lm_head.weight" ? "transformer.wte.weight" : name, value);
  const at::NoGradGuard no_grad;
  int64_t k = 0;
  for (auto& [name, value] : parameters)
    value.copy_(sines(k++, value.sizes()) +
                (name.find(".ln_") != std::string::npos && name.ends_with("weight") ? 1 : 0));
  return model;
}

// The adapters that the twin begins with, in the form of PEFT.
void write_twins_adapters(const std::filesystem::path& folder, const nlohmann::json& baseline, const GPT& model) {
  AdapterRecord record;
  record.rank = baseline.at("rank");
  record.alpha = baseline.at("alpha");
  record.trained = {"transformer.ln_f.weight", "transformer.ln_f.bias"};
  NamedTensors tensors;
  const auto parameters = model.named_parameters();
  for (const std::string& name : record.trained) tensors.emplace_back(name, parameters[name].detach());
  for (const auto& layer : baseline.at("layers")) {
    const std::string name = layer;
    const Tensor weight = parameters[name + ".weight"];
    tensors.emplace_back(name + ".lora_A",
                         sines(100 + static_cast<int64_t>(record.layers.size()), {record.rank, weight.size(1)}));
    tensors.emplace_back(name + ".lora_B", at::zeros({weight.size(0), record.rank}, at::kDouble));
    record.layers.push_back(name);
  }
  write_adapters(folder, tensors, record);
}

// Adds adapters with B that are not zero to all linear layers but those of `without`; returns the parameters B.
std::vector<NamedParameter> adapt_all(torch::nn::Module& model, const std::string& without = "") {
  std::vector<NamedParameter> added;
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (!nn::takes_lora(*item.value()) || item.key() == without) continue;
    nn::add_lora(*item.value(), {.rank = 2, .alpha = 4, .dropout = 0});
    Tensor b = item.value()->named_parameters(/*recurse=*/false)["lora_B"];
    added.push_back({item.key(), b});
  }
  return added;
}

// Each adapter changes the loss, and gets a gradient.
void check_each_adapter(LightningModule& model, const Batch& batch, const std::string& without = "") {
  test::fill_by_formula(model);
  const Tensor base = model.training_step(batch, 0).loss.detach();
  const auto added = adapt_all(model, without);
  REQUIRE(added.size() > 3);
  CHECK(model.training_step(batch, 0).loss.equal(base));
  model.training_step(batch, 0).loss.backward();
  for (const auto& [name, b] : added) {
    CAPTURE(name);
    REQUIRE(b.grad().defined());
    CHECK(b.grad().abs().max().item<double>() > 0);
    const at::NoGradGuard no_grad;
    Tensor values = b;
    values.copy_(sines(7, values.sizes()));  // no constant, which norms would remove
    CHECK_FALSE(model.training_step(batch, 0).loss.equal(base));
    values.zero_();
  }
}

}  // namespace

TEST_CASE("a GPT with adapters gives the losses of five steps, and then the logits, that it gives in Python") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines" / "adapters.json");
  const auto baseline = nlohmann::json::parse(file);
  const TemporaryFolder folder;
  const auto model = twin_of(baseline);
  write_twins_adapters(folder / "adapters", baseline, *model);
  Problems problems;
  const ConfigNode node = parse_yaml(
      cat("seed_everything: 1\n"
          "trainer: {max_steps: 5, precision: 64-true, accelerator: cpu, log_every_n_steps: 1, gradient_clip_val: ",
          baseline.at("clip").get<double>(), ", default_root_dir: '", folder.path(),
          "', enable_progress_bar: false, enable_model_summary: false}\n"
          "adapters: {target: ['*.attn.c_attn', '*.mlp.c_proj'], rank: ",
          baseline.at("rank").get<int64_t>(), ", alpha: ", baseline.at("alpha").get<double>(),
          ", train: ['transformer.ln_f.*'], path: '", folder / "adapters",
          "'}\n"
          "optimizer: {class_path: AdamW, init_args: {lr: ",
          baseline.at("lr").get<double>(), ", weight_decay: ", baseline.at("weight_decay").get<double>(), "}}\n"),
      "test", problems);
  problems.throw_if_any();
  const int64_t samples = baseline.at("batch"), length = baseline.at("block_size");
  const Tensor tokens = at::arange(samples * (length + 1), at::kLong)
                            .square()
                            .remainder(baseline.at("vocab_size").get<int64_t>())
                            .view({samples, length + 1});
  TensorDataModule::Sets sets;
  sets.train =
      Batch{{"input", tokens.narrow(1, 0, length).contiguous()}, {"target", tokens.narrow(1, 1, length).contiguous()}};
  const auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  const FitReport report =
      Trainer::from_config(config_from_node(node), components)
          .fit(model,
               std::make_shared<TensorDataModule>(
                   std::move(sets), TensorDataOptions{.batch_size = samples, .eval_batch_size = {}, .shuffle = false}));
  const auto losses = logger->values("train_loss");
  const auto expected = baseline.at("losses").get<std::vector<double>>();
  REQUIRE(losses.size() == expected.size());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i].second - expected[i]) < 1e-9);
  const at::NoGradGuard no_grad;
  const Tensor logits = at::tensor(baseline.at("logits").get<std::vector<double>>(), at::kDouble);
  model->eval();
  const Tensor input = tokens.narrow(1, 0, length);
  CHECK(at::allclose(model->forward(input).reshape(-1), logits, 1e-8, 1e-9));
  // The plain model with the merged weights.
  REQUIRE(report.last_checkpoint);
  CheckpointContent content = read_checkpoint(*report.last_checkpoint);
  merge_adapters(content.module, adapters_of(content.state).value());
  const auto plain = twin_of(baseline);
  load_module_state(*plain, content.module);
  plain->eval();
  CHECK(at::allclose(plain->forward(input).reshape(-1), logits, 1e-8, 1e-9));
}

TEST_CASE("each linear layer of a GPT, a BERT and a ViT computes with its adapter") {
  GPT gpt({.vocab_size = 11, .block_size = 7, .n_layer = 2, .n_head = 2, .n_embd = 8});
  const Tensor tokens = at::arange(24, at::kLong).square().remainder(11).view({3, 8});
  const Tensor input = tokens.narrow(1, 0, 7), target = tokens.narrow(1, 1, 7);
  check_each_adapter(gpt, Batch({Batch::Entry{"input", input}, Batch::Entry{"target", target}}), "lm_head");
  GPT llama({.vocab_size = 11,
             .block_size = 7,
             .n_layer = 2,
             .n_head = 2,
             .n_embd = 8,
             .activation_checkpointing = "all",
             .tie_weights = false});
  check_each_adapter(llama, Batch({Batch::Entry{"input", input}, Batch::Entry{"target", target}}));
  BertClassifier bert({.vocab_size = 11,
                       .max_length = 8,
                       .num_layers = 2,
                       .num_heads = 2,
                       .hidden_dim = 8,
                       .mlp_dim = 12,
                       .num_classes = 3,
                       .dropout = 0});
  const Tensor labels = at::arange(3, at::kLong);
  check_each_adapter(bert, Batch({Batch::Entry{"tokens", tokens}, Batch::Entry{"label", labels}}));
  VisionTransformer vit({.image_size = 8,
                         .patch_size = 4,
                         .num_layers = 2,
                         .num_heads = 2,
                         .hidden_dim = 8,
                         .mlp_dim = 12,
                         .num_classes = 3});
  check_each_adapter(
      vit, Batch({Batch::Entry{"image", test::by_formula({3, 3, 8, 8}, 997)}, Batch::Entry{"label", labels}}));
}

TEST_CASE("load_from_checkpoint merges adapters, so that the module computes without them") {
  const TemporaryFolder folder;
  Problems problems;
  const ConfigNode node = parse_yaml(cat("seed_everything: 1\n"
                                         "trainer: {max_epochs: 2, accelerator: cpu, default_root_dir: '",
                                         folder.path(),
                                         "', enable_progress_bar: false, enable_model_summary: false}\n"
                                         "adapters: {target: ['*']}\n"
                                         "optimizer: {class_path: SGD, init_args: {lr: 0.5}}\n"),
                                     "test", problems);
  problems.throw_if_any();
  const auto model = make_component<LightningModule, MlpClassifier>(
      MlpClassifier::Options{.in_features = 4, .hidden = {5}, .num_classes = 3});
  TensorDataModule::Sets sets;
  const Tensor x = test::by_formula({12, 4}, 3).to(at::kFloat);
  sets.train = Batch{{"x", x}, {"y", at::arange(12, at::kLong).remainder(3)}};
  const FitReport report =
      Trainer::from_config(config_from_node(node))
          .fit(model,
               std::make_shared<TensorDataModule>(
                   std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = false}));
  REQUIRE(report.last_checkpoint);
  const auto loaded = load_from_checkpoint<MlpClassifier>(*report.last_checkpoint);
  CHECK(loaded->named_parameters().size() == 4);
  model->eval();
  CHECK(at::allclose(loaded->forward(x), model->forward(x), 1e-5, 1e-6));
  CHECK_FALSE(model->named_parameters()["layers.layer0.lora_B"].equal(at::zeros({5, 8})));
}

}  // namespace adapted_models_test
