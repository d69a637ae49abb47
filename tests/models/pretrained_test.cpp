// Weights of other programs: key maps, shards, and `pretrained` of a run.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/checkpoint/map_keys.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/models/gpt.h"
#include "fulgur/models/mlp_classifier.h"
#include "fulgur/models/vision_transformer.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/trainer.h"
#include "fulgur/trainer/yaml.h"
#include "models/formula.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "trainer/boring.h"

namespace pretrained_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

// The names of a Python program that calls the layers `net`, and keeps a mask with them.
struct TestNetKeys final : KeyMap {
  std::string prefix() const override { return "module."; }
  std::vector<KeyRule> rules() const override {
    return {{.from = "net.mask", .to = ""}, {.from = "net.**", .to = "layers.**"}};
  }
};
FULGUR_REGISTER(KeyMap, TestNetKeys, "The names of a network of the tests.");

namespace {

Config config_of(const std::string& yaml) {
  Problems problems;
  const ConfigNode node = parse_yaml(yaml, "test", problems);
  problems.throw_if_any();
  return config_from_node(node);
}

std::shared_ptr<KeyMap> map_named(const std::string& name) { return Spec<KeyMap>(name).create(); }

// Tensors as make_vision_baseline.py has written them.
NamedTensors tensors_of(const nlohmann::json& shapes) {
  NamedTensors tensors;
  for (const auto& [name, shape] : shapes.items()) {
    const auto sizes = shape.get<std::vector<int64_t>>();
    tensors.emplace_back(name, test::weight_by_formula(name, sizes, static_cast<int64_t>(tensors.size())));
  }
  return tensors;
}

Tensor logits_in(const nlohmann::json& recorded) {
  return at::tensor(recorded.at("logits").get<std::vector<double>>(), at::kDouble);
}

std::shared_ptr<MlpClassifier> small_classifier(int64_t classes = 3) {
  return std::make_shared<MlpClassifier>(
      MlpClassifier::Options{.in_features = 4, .hidden = {5}, .num_classes = classes});
}

std::shared_ptr<DataModule> small_data() {
  TensorDataModule::Sets sets;
  sets.train = sets.val = sets.test = Batch{{"x", at::randn({8, 4})}, {"y", at::arange(8, at::kLong).remainder(3)}};
  return std::make_shared<TensorDataModule>(
      std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = false});
}

// A run that leaves the weights as they are at its start.
void run_with(const PretrainedWeights& pretrained, const std::shared_ptr<LightningModule>& module) {
  const test::TemporaryFolder folder;
  TrainerComponents components;
  components.pretrained = pretrained;
  Trainer(test::quiet(folder), components).test(module, small_data());
}

Tensor parameter(const torch::nn::Module& module, const std::string& name) { return module.named_parameters()[name]; }

}  // namespace

TEST_CASE("key rules rename whole parts, and the rest") {
  using Name = std::optional<std::string>;
  CHECK(renamed_by({.from = "h.*.attn.weight", .to = "blocks.block_*.w"}, "h.12.attn.weight") ==
        Name("blocks.block_12.w"));
  CHECK(renamed_by({.from = "h.*.attn.weight", .to = "x"}, "h.1.attn.weight.more") == std::nullopt);
  CHECK(renamed_by({.from = "h.*.attn.weight", .to = "x"}, "h.1.2.attn.weight") == std::nullopt);
  CHECK(renamed_by({.from = "h.**", .to = "t.h.**"}, "h.1.a.b") == Name("t.h.1.a.b"));
  CHECK(renamed_by({.from = "h.**", .to = "t.**"}, "h") == std::nullopt);
  CHECK(renamed_by({.from = "*.x.*", .to = "*-*"}, "a.x.b") == Name("a-b"));
  CHECK(renamed_by({.from = "mask", .to = ""}, "mask") == Name(""));
}

TEST_CASE("Hugging Face's GPT-2 gives the same logits here") {
  const auto& recorded = test::vision_baseline().at("hugging_face").at("gpt2");
  GPT model({.vocab_size = 11,
             .block_size = 7,
             .n_layer = 2,
             .n_head = 3,
             .n_embd = 12,
             .activation = GptActivation::gelu_tanh});
  convert_floating(model, at::kDouble);
  model.eval();
  const NamedTensors mapped = map_keys(tensors_of(recorded.at("shapes")), *map_named("hf_gpt2"), "hf_gpt2");
  CHECK(load_module_state(model, mapped).differences.empty());
  const Tensor tokens = at::arange(21, at::kLong).square().remainder(11).view({3, 7});
  const at::NoGradGuard no_grad;
  CHECK(at::allclose(model.forward(tokens).reshape(-1), logits_in(recorded), 1e-9, 1e-9));
  // Old files name the layers without their prefix, and contain masks.
  NamedTensors old;
  for (const auto& [name, tensor] : tensors_of(recorded.at("shapes")))
    old.emplace_back(name.starts_with("transformer.") ? name.substr(12) : name, tensor);
  old.emplace_back("h.0.attn.bias", at::ones({1, 1, 7, 7}));
  old.emplace_back("h.1.attn.masked_bias", at::zeros({}));
  CHECK(load_module_state(model, map_keys(old, *map_named("hf_gpt2"), "hf_gpt2")).loaded.size() ==
        module_state(model).size());
}

TEST_CASE("Hugging Face's ViT gives the same logits here") {
  const auto& recorded = test::vision_baseline().at("hugging_face").at("vit");
  VisionTransformer model({.image_size = 8,
                           .patch_size = 4,
                           .num_layers = 2,
                           .num_heads = 3,
                           .hidden_dim = 12,
                           .mlp_dim = 20,
                           .num_classes = 5,
                           .layer_norm_eps = 1e-12});
  convert_floating(model, at::kDouble);
  model.eval();
  NamedTensors tensors = tensors_of(recorded.at("shapes"));
  CHECK(load_module_state(model, map_keys(tensors, *map_named("hf_vit"), "hf_vit")).differences.empty());
  const at::NoGradGuard no_grad;
  CHECK(at::allclose(model.forward(test::by_formula({2, 3, 8, 8}, 997)).reshape(-1), logits_in(recorded), 1e-9, 1e-9));
  // Without one of the parts that are joined, nothing is loaded.
  std::erase_if(tensors, [](const auto& item) {
    return item.first.ends_with("key.weight") || item.first.ends_with("k_proj.weight");
  });
  CHECK_THAT(message_of<CheckpointError>([&] { map_keys(tensors, *map_named("hf_vit"), "hf_vit"); }),
             ContainsSubstring("part 2 of 3 of encoder.layers.encoder_layer_0.self_attention.in_proj_weight"));
}

TEST_CASE("a tensor that is transposed must be a matrix") {
  const NamedTensors wrong = {{"h.0.attn.c_attn.weight", at::ones({2, 3, 4})}};
  CHECK_THAT(message_of<CheckpointError>([&] { map_keys(wrong, *map_named("hf_gpt2"), "hf_gpt2"); }),
             ContainsSubstring("must be a matrix") && ContainsSubstring("[2, 3, 4]"));
}

TEST_CASE("weights that are ignored keep their values, and each pattern must match") {
  const auto from = small_classifier(), to = small_classifier(7);
  const Tensor head = parameter(*to, "layers.layer1.weight").clone();
  const auto options = [](std::vector<std::string> ignore) {
    return LoadOptions{.strict = true, .key_prefixes = {}, .convert_formats = false, .ignore = std::move(ignore)};
  };
  CHECK_THROWS_AS(load_module_state(*to, module_state(*from), options({})), CheckpointError);
  const LoadReport report = load_module_state(*to, module_state(*from), options({"layers.layer1.*"}));
  CHECK(report.ignored == std::vector<std::string>{"layers.layer1.weight", "layers.layer1.bias"});
  CHECK(at::equal(parameter(*to, "layers.layer1.weight"), head));
  CHECK(at::equal(parameter(*to, "layers.layer0.weight"), parameter(*from, "layers.layer0.weight")));
  CHECK_THAT(message_of<CheckpointError>([&] {
               load_module_state(*to, module_state(*from), options({"layers.layer1.*", "head.*"}));
             }),
             ContainsSubstring("'head.*' matches"));
}

TEST_CASE("a run begins with pretrained weights, and says what does not fit") {
  const test::TemporaryFolder folder;
  const auto source = small_classifier();
  for (const auto& [name, format] :
       {std::pair("net.safetensors", WeightsFormat::safetensors), std::pair("net.pt", WeightsFormat::pytorch)}) {
    CAPTURE(name);
    const std::filesystem::path file = folder / name;
    write_weights_file(file, {.format = format, .tensors = module_state(*source), .aliases = {}, .left_out = {}});
    PretrainedWeights pretrained;
    pretrained.path = file;
    const auto same = small_classifier();
    run_with(pretrained, same);
    CHECK(at::equal(parameter(*same, "layers.layer0.weight"), parameter(*source, "layers.layer0.weight")));
    CHECK(at::equal(parameter(*same, "layers.layer1.bias"), parameter(*source, "layers.layer1.bias")));

    const auto other = small_classifier(6);
    CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, other); }),
               ContainsSubstring("layers.layer1.weight") && ContainsSubstring("[3, 5]") &&
                   ContainsSubstring("pretrained.ignore"));
    const Tensor head = parameter(*other, "layers.layer1.weight").clone();
    pretrained.ignore = {"layers.layer1.*"};
    run_with(pretrained, other);
    CHECK(at::equal(parameter(*other, "layers.layer0.weight"), parameter(*source, "layers.layer0.weight")));
    CHECK(at::equal(parameter(*other, "layers.layer1.weight"), head));

    const auto lenient = small_classifier(6);
    pretrained.ignore = {};
    pretrained.strict = false;
    run_with(pretrained, lenient);
    CHECK(at::equal(parameter(*lenient, "layers.layer0.weight"), parameter(*source, "layers.layer0.weight")));
  }
  PretrainedWeights without_path;
  without_path.strict = false;
  CHECK_THAT(message_of<ConfigError>([&] { run_with(without_path, small_classifier()); }),
             ContainsSubstring("[pretrained]"));
  PretrainedWeights missing;
  missing.path = folder / "none.safetensors";
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(missing, small_classifier()); }),
             ContainsSubstring("pretrained.path must name") && ContainsSubstring("none.safetensors") &&
                 !ContainsSubstring("hub"));
  missing.path = "someone/no-such-model";
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(missing, small_classifier()); }),
             ContainsSubstring("someone/no-such-model does not. Names of Hugging Face's hub are not downloaded"));
}

TEST_CASE("a key map that knows no name of the file is an error, and config.json says which one is missing") {
  const test::TemporaryFolder folder;
  const auto source = small_classifier();
  PretrainedWeights pretrained;
  pretrained.path = folder / "model.safetensors";
  write_weights_file(
      *pretrained.path,
      {.format = WeightsFormat::safetensors, .tensors = module_state(*source), .aliases = {}, .left_out = {}});
  pretrained.key_map = Spec<KeyMap>("hf_gpt2");
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, small_classifier()); }),
             ContainsSubstring("hf_gpt2 knows none of the names") && ContainsSubstring("layers.layer0.weight"));
  pretrained.key_map = Spec<KeyMap>("torchvision_resnet");  // without rules: the names are those of the model
  run_with(pretrained, small_classifier());
  pretrained.key_map = {};
  const auto refusal = [&](const char* json) {
    test::write_text(folder / "config.json", json);
    return message_of<CheckpointError>([&] { run_with(pretrained, small_classifier(5)); });
  };
  CHECK_THAT(refusal(R"({"model_type": "bert"})"),
             ContainsSubstring("says model_type: bert") && ContainsSubstring("Set pretrained.key_map: hf_bert"));
  for (const char* json : {R"({"model_type": "unknown"})", R"({"model_type": 3})", "[", "{}"})
    CHECK_THAT(refusal(json), ContainsSubstring("does not fit") && !ContainsSubstring("Set pretrained.key_map"));
  // The map that config.json names is not proposed again.
  pretrained.key_map = Spec<KeyMap>("hf_bert");
  pretrained.use_config = false;
  CHECK_THAT(refusal(R"({"model_type": "bert"})"),
             ContainsSubstring("does not fit") && !ContainsSubstring("says model_type"));
}

TEST_CASE("weights that do not fit name the options that config.json has with other values") {
  const test::TemporaryFolder folder;
  PretrainedWeights pretrained;
  pretrained.path = folder / "model.safetensors";
  write_weights_file(*pretrained.path,
                     {.format = WeightsFormat::safetensors,
                      .tensors = tensors_of(test::vision_baseline().at("hugging_face").at("gpt2").at("shapes")),
                      .aliases = {},
                      .left_out = {}});
  test::write_text(folder / "config.json",
                   R"({"model_type": "gpt2", "n_positions": 7, "vocab_size": 11, "n_layer": 2})");
  pretrained.key_map = Spec<KeyMap>("hf_gpt2");
  const auto model = [] {
    return std::shared_ptr<LightningModule>(make_component<LightningModule, GPT>(
        GPT::Options{.vocab_size = 11, .block_size = 5, .n_layer = 2, .n_head = 3, .n_embd = 12}));
  };
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, model()); }),
             ContainsSubstring("does not fit") &&
                 ContainsSubstring("says other values: model.init_args.block_size is 5 (n_positions: 7)."));
  std::filesystem::remove(folder / "config.json");
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, model()); }),
             ContainsSubstring("does not fit") && !ContainsSubstring("config.json"));
}

TEST_CASE("a run applies the key map that pretrained names") {
  const test::TemporaryFolder folder;
  const auto source = small_classifier();
  NamedTensors renamed = {{"module.net.mask", at::ones({2})}};
  for (const auto& [name, tensor] : module_state(*source))
    renamed.emplace_back("module.net" + name.substr(std::string("layers").size()), tensor);
  PretrainedWeights pretrained;
  pretrained.path = folder / "net.safetensors";
  write_weights_file(*pretrained.path,
                     {.format = WeightsFormat::safetensors, .tensors = renamed, .aliases = {}, .left_out = {}});
  const auto model = small_classifier();
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, model); }),
             ContainsSubstring("pretrained.key_map") && ContainsSubstring("module.net.mask"));
  pretrained.key_map = Spec<KeyMap>("TestNetKeys");
  run_with(pretrained, model);
  for (const auto& [name, value] : module_state(*source)) CHECK(at::equal(parameter(*model, name), value));
}

TEST_CASE("pretrained in a config: the key map is checked, and the config reads back") {
  const Config config = config_of("pretrained: {path: a.pt, key_map: hf_vit, strict: false, ignore: ['heads.*']}");
  const Config again = config_from_node(config.write());
  for (const Config* each : {&config, &again}) {
    CHECK(each->pretrained.path == std::filesystem::path("a.pt"));
    CHECK(each->pretrained.key_map.class_path() == "hf_vit");
    CHECK_FALSE(each->pretrained.strict);
    CHECK(each->pretrained.ignore == std::vector<std::string>{"heads.*"});
  }
  const Config none = config_from_node(config_of("seed_everything: 1").write());
  CHECK_FALSE(none.pretrained.path);
  CHECK_FALSE(none.pretrained.key_map);
  CHECK_THAT(message_of<ConfigError>([] { config_of("pretrained: {path: a, key_map: hf_gpt}"); }),
             ContainsSubstring("hf_gpt2"));
  CHECK_THAT(message_of<ConfigError>([] { config_of("pretrained: {paht: a}"); }), ContainsSubstring("path"));
  CHECK_THAT(message_of<ConfigError>([] { config_of("pretrained: resnet18.safetensors"); }),
             ContainsSubstring("expected map") && ContainsSubstring("write {path: resnet18.safetensors}"));
}

TEST_CASE("options of the model come from the config.json beside the weights") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "config.json", R"({"activation_function": "gelu_new", "layer_norm_epsilon": 1e-05,
    "n_embd": 12, "n_head": 3, "n_inner": null, "n_layer": 2, "n_positions": 7, "vocab_size": 11})");
  const std::string pretrained = cat("pretrained: {path: ", folder.path().string(), ", key_map: hf_gpt2");
  const auto option = [](const Config& config, const char* name) {
    return config.write().find("model")->find("init_args")->find(name)->text();
  };
  const Config config = config_of("model: GPT\n" + pretrained + "}");
  for (const auto& [name, value] :
       {std::pair("vocab_size", "11"), std::pair("block_size", "7"), std::pair("n_layer", "2"),
        std::pair("n_head", "3"), std::pair("n_embd", "12"), std::pair("activation", "gelu_tanh"),
        std::pair("mlp_hidden", "auto"), std::pair("tie_weights", "true"), std::pair("dropout", "0.0")}) {
    CAPTURE(name);
    CHECK(option(config, name) == value);
  }
  CHECK(config.pretrained.from_config.size() > 6);
  // The file of the weights has the same folder.
  CHECK(option(config_of(cat("model: GPT\npretrained: {path: ", (folder / "model.safetensors").string(),
                             ", key_map: hf_gpt2}")),
               "n_head") == "3");
  // What is saved reads back, also without the file.
  const ConfigNode saved = config.write();
  CHECK(config_from_node(saved).write().same_as(saved));
  // Options that the config sets must agree with the file, unless it is not used.
  const auto refusal = [&](const std::string& args) {
    return message_of<ConfigError>(
        [&] { config_of("model: {class_path: GPT, init_args: {" + args + "}}\n" + pretrained + "}"); });
  };
  CHECK_THAT(refusal("activation: gelu"), ContainsSubstring("model.init_args.activation") &&
                                              ContainsSubstring("Set it to gelu_tanh") &&
                                              ContainsSubstring("activation_function: gelu_new"));
  CHECK_THAT(refusal("norm_eps: 1e-2"), ContainsSubstring("layer_norm_epsilon"));
  CHECK_THAT(refusal("n_head: 4"), ContainsSubstring("Set it to 3"));
  CHECK_THAT(refusal("norm: rms"), ContainsSubstring("the key map"));
  CHECK(option(config_of("model: {class_path: GPT, init_args: {n_head: 4, n_layer: 2, norm_eps: 1.0e-5}}\n" +
                         pretrained + ", use_config: false}"),
               "n_head") == "4");
  CHECK(option(config_of("model: {class_path: GPT, init_args: {norm_eps: 1.0e-5}}\n" + pretrained + "}"), "norm_eps") ==
        "1e-05");
}

TEST_CASE("a config.json that describes another computation, or is damaged, is an error") {
  const test::TemporaryFolder folder;
  const auto message = [&](const std::string& json) {
    test::write_text(folder / "config.json", json);
    return message_of<ConfigError>(
        [&] { config_of(cat("model: GPT\npretrained: {path: ", folder.path().string(), ", key_map: hf_llama}")); });
  };
  CHECK_THAT(message(R"({"hidden_act": "gelu"})"), ContainsSubstring("hidden_act: gelu") && ContainsSubstring("silu"));
  CHECK_THAT(message(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})"),
             ContainsSubstring("rope_scaling.rope_type: llama3"));
  CHECK_THAT(message("{"), ContainsSubstring("must be a JSON object"));
  CHECK_THAT(message("[]"), ContainsSubstring("must be a JSON object"));
  CHECK_THAT(message(R"({"hidden_size": "wide"})"), ContainsSubstring("n_embd"));
}

TEST_CASE("a config.json of another architecture with the same names of weights is an error") {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& model, const std::string& key_map, const std::string& json,
                        const std::string& more = "") {
    test::write_text(folder / "config.json", json);
    config_of(
        cat("model: ", model, "\npretrained: {path: ", folder.path().string(), ", key_map: ", key_map, more, "}"));
  };
  const auto message = [&](const std::string& model, const std::string& key_map, const std::string& json) {
    return message_of<ConfigError>([&] { read(model, key_map, json); });
  };
  CHECK_THAT(message("GPT", "hf_llama", R"({"model_type": "granite"})"),
             ContainsSubstring("model_type: granite") && ContainsSubstring("computes only llama, mistral") &&
                 ContainsSubstring("use_config"));
  CHECK_THAT(message("GPT", "hf_llama", R"({"model_type": "mistral", "sliding_window": 4096})"),
             ContainsSubstring("sliding_window: 4096"));
  CHECK_THAT(message("GPT", "hf_llama", R"({"model_type": "gpt2"})"),
             ContainsSubstring("pretrained.key_map: is for llama, mistral") &&
                 ContainsSubstring("Set pretrained.key_map: hf_gpt2"));
  CHECK_THAT(message("GPT", "hf_llama", R"({"model_type": "llama", "attention_bias": true})"),
             ContainsSubstring("means both true and false (no mlp_bias) for model.init_args.bias"));
  CHECK_NOTHROW(read("GPT", "hf_llama", R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true})"));
  CHECK_THAT(message("GPT", "hf_gpt2", R"({"model_type": "gpt_bigcode"})"), ContainsSubstring("computes only gpt2"));
  const std::string bert = "{class_path: BertClassifier, init_args: {num_classes: 2}}";
  CHECK_THAT(message(bert, "hf_bert", R"({"model_type": "roberta"})"), ContainsSubstring("computes only bert"));
  CHECK_THAT(message(bert, "hf_bert", R"({"model_type": "bert", "is_decoder": true})"),
             ContainsSubstring("is_decoder: true"));
  const std::string vit = "{class_path: VisionTransformer, init_args: {num_classes: 2}}";
  CHECK_THAT(message(vit, "hf_vit", R"({"model_type": "deit"})"), ContainsSubstring("computes only vit"));
  const std::string sizes = R"("vocab_size": 32, "max_position_embeddings": 8)";
  for (const std::string type :
       {R"("model_type": "llama", )", R"("model_type": "mistral", "sliding_window": null, )", ""})
    CHECK_NOTHROW(read("GPT", "hf_llama", cat("{", type, sizes, "}")));
  CHECK_NOTHROW(read("{class_path: GPT, init_args: {vocab_size: 32, block_size: 8}}", "hf_llama",
                     R"({"model_type": "granite"})", ", use_config: false"));
}

TEST_CASE("options that a link fills are not taken from config.json, and those of Llama come from it") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "config.json", R"({"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "tie_word_embeddings": false, "hidden_act": "silu"})");
  const Config config = config_of(
      cat("model: {class_path: GPT, init_args: {block_size: 32}}\npretrained: {path: ", folder.path().string(),
          ", key_map: hf_llama}\n", "data: SyntheticDataModule\nlink: {model.init_args.vocab_size: data.num_classes}"));
  const ConfigNode written = config.write();
  const auto option = [&](const char* name) { return written.find("model")->find("init_args")->find(name)->text(); };
  CHECK(option("vocab_size") == "256");
  CHECK(option("block_size") == "32");
  CHECK(option("n_kv_head") == "2");
  CHECK(option("mlp_hidden") == "24");
  CHECK(parse_whole<double>(option("rope_theta")) == 500000.0);
  CHECK(option("norm_eps") == "1e-06");
  CHECK(option("positions") == "rotary");
  CHECK(option("norm") == "rms");
  CHECK(option("mlp") == "swiglu");
  CHECK(option("bias") == "false");
  CHECK(option("tie_weights") == "false");
}

TEST_CASE("a prefix of the names in a file is named, and removed") {
  const test::TemporaryFolder folder;
  const auto source = small_classifier();
  NamedTensors prefixed;
  for (const auto& [name, tensor] : module_state(*source)) prefixed.emplace_back("model." + name, tensor);
  prefixed.emplace_back("loss.weight", at::ones({2}));
  PretrainedWeights pretrained;
  pretrained.path = folder / "net.safetensors";
  write_weights_file(*pretrained.path,
                     {.format = WeightsFormat::safetensors, .tensors = prefixed, .aliases = {}, .left_out = {}});
  const auto model = small_classifier();
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, model); }),
             ContainsSubstring("begin with model.") && ContainsSubstring("Set pretrained.key_prefix: model."));
  pretrained.key_prefix = "model.";
  pretrained.strict = false;  // the loss has no place here
  run_with(pretrained, model);
  for (const auto& [name, value] : module_state(*source)) CHECK(at::equal(parameter(*model, name), value));
  pretrained.key_prefix = "module.";
  CHECK_THAT(message_of<CheckpointError>([&] { run_with(pretrained, model); }),
             ContainsSubstring("must begin with 'module.'") && ContainsSubstring("model."));
}

TEST_CASE("a checkpoint replaces pretrained weights, whose file may be gone") {
  const test::TemporaryFolder folder;
  const auto source = small_classifier();
  const std::filesystem::path file = folder / "net.safetensors";
  write_weights_file(
      file, {.format = WeightsFormat::safetensors, .tensors = module_state(*source), .aliases = {}, .left_out = {}});
  TrainerComponents components;
  components.pretrained.path = file;
  components.optimizer = Spec<Optimizer>("SGD");
  Trainer trainer(test::quiet(folder), components);
  const auto trained = small_classifier();
  trainer.fit(trained, small_data());
  CHECK_FALSE(at::equal(parameter(*trained, "layers.layer0.weight"), parameter(*source, "layers.layer0.weight")));
  // The module itself keeps what it has learned.
  const Tensor learned = parameter(*trained, "layers.layer0.weight").clone();
  trainer.test(trained, small_data());
  CHECK(at::equal(parameter(*trained, "layers.layer0.weight"), learned));
  std::filesystem::remove(file);
  const auto tested = small_classifier();
  trainer.test(tested, small_data(), "last");
  CHECK(at::equal(parameter(*tested, "layers.layer0.weight"), parameter(*trained, "layers.layer0.weight")));
}

TEST_CASE("shards are read through their index, which must agree with them") {
  const test::TemporaryFolder folder;
  const auto write = [&](const char* name, const NamedTensors& tensors) {
    write_weights_file(folder / name,
                       {.format = WeightsFormat::safetensors, .tensors = tensors, .aliases = {}, .left_out = {}},
                       /*replace=*/true);
  };
  const Tensor a = at::randn({2, 3}), b = at::randn({4});
  write("model-1.safetensors", {{"a", a}});
  write("model-2.safetensors", {{"b", b}});
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  const auto read_with = [&](const std::string& text) {
    test::write_text(index, text);
    return read_weights_file(folder.path());  // the folder means its index
  };
  const WeightsFile whole =
      read_with(R"({"metadata": {}, "weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}})");
  REQUIRE(whole.tensors.size() == 2);
  CHECK(whole.tensors[0].first == "a");
  CHECK(at::equal(whole.tensors[0].second, a));
  CHECK(at::equal(whole.tensors[1].second, b));
  CHECK(read_weights_file(index).tensors.size() == 2);

  const auto refuses = [&](const std::string& text, const std::string& reason) {
    CAPTURE(text);
    CHECK_THAT(message_of<CheckpointError>([&] { read_with(text); }), ContainsSubstring(reason));
  };
  refuses("{", "not valid JSON");
  refuses("[]", "weight_map");
  refuses(R"({"weight_map": {}})", "weight_map");
  refuses(R"({"weight_map": {"a": 3}})", "the shard of 'a'");
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", "", "..", "model.safetensors.index.json"})
    refuses(nlohmann::json{{"weight_map", {{"a", name}}}}.dump(), "the name of a file beside it");
  refuses(R"({"weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}})", "'b'");
  refuses(R"({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}})", "lacks the tensor 'b'");
  refuses(R"({"weight_map": {"a": "gone.safetensors"}})", "gone.safetensors");
  const test::TemporaryFolder empty;
  CHECK_THAT(message_of<CheckpointError>([&] { read_weights_file(empty.path()); }),
             ContainsSubstring("has no weights"));
}

}  // namespace pretrained_test
