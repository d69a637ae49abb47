#include "fulgur/core/contracts/key_map.h"

#include "fulgur/core/contracts/registry.h"
#include "parts/encoder_config_rules.h"

namespace fulgur {
namespace {

/// torchvision's ResNet, ViT and ConvNeXt have the names of the models here.
class TorchvisionKeys final : public KeyMap {
 public:
  std::vector<KeyRule> rules() const override { return {}; }
};

/// GPT2Model and GPT2LMHeadModel. Their Conv1D layers store the transposed weight of a linear layer.
class HfGpt2Keys final : public KeyMap {
 public:
  std::string prefix() const override { return "transformer."; }
  std::vector<KeyRule> rules() const override {
    return {
        // Masks, which old files contain.
        {.from = "h.*.attn.bias", .to = ""},
        {.from = "h.*.attn.masked_bias", .to = ""},
        {.from = "h.*.attn.c_attn.weight", .to = "transformer.h.*.attn.c_attn.weight", .transpose = true},
        {.from = "h.*.attn.c_proj.weight", .to = "transformer.h.*.attn.c_proj.weight", .transpose = true},
        {.from = "h.*.mlp.c_fc.weight", .to = "transformer.h.*.mlp.c_fc.weight", .transpose = true},
        {.from = "h.*.mlp.c_proj.weight", .to = "transformer.h.*.mlp.c_proj.weight", .transpose = true},
        {.from = "h.**", .to = "transformer.h.**"},
        {.from = "wte.weight", .to = "transformer.wte.weight"},
        {.from = "wpe.weight", .to = "transformer.wpe.weight"},
        {.from = "ln_f.*", .to = "transformer.ln_f.*"},
    };
  }
  std::vector<ConfigRule> config_rules() const override {
    return {
        {.keys = {"model_type"}, .option = "", .values = {{"gpt2", ""}}},
        {.keys = {"vocab_size"}, .option = "vocab_size"},
        {.keys = {"n_positions"}, .option = "block_size"},
        {.keys = {"n_layer"}, .option = "n_layer"},
        {.keys = {"n_head"}, .option = "n_head"},
        {.keys = {"n_embd"}, .option = "n_embd"},
        {.keys = {"n_inner"}, .option = "mlp_hidden"},
        {.keys = {"layer_norm_epsilon"}, .option = "norm_eps", .otherwise = "1e-05"},
        {.keys = {"activation_function"},
         .option = "activation",
         .otherwise = "gelu_new",
         .values = {{"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu", "gelu"}}},
        {.keys = {"tie_word_embeddings"}, .option = "tie_weights", .otherwise = "true"},
        {.keys = {}, .option = "bias", .otherwise = "true"},
        {.keys = {}, .option = "positions", .otherwise = "learned"},
        {.keys = {}, .option = "norm", .otherwise = "layer"},
        {.keys = {}, .option = "mlp", .otherwise = "gelu"},
        {.keys = {"scale_attn_weights"}, .option = "", .values = {{"true", ""}}},
        {.keys = {"scale_attn_by_inverse_layer_idx"}, .option = "", .values = {{"false", ""}}},
    };
  }
};

/// ViTModel and ViTForImageClassification, under the names in files and under those in memory of transformers 5.
class HfVitKeys final : public KeyMap {
 public:
  std::string prefix() const override { return "vit."; }
  std::vector<KeyRule> rules() const override {
    std::vector<KeyRule> rules = {
        {.from = "embeddings.cls_token", .to = "class_token"},
        {.from = "embeddings.mask_token", .to = ""},
        {.from = "embeddings.position_embeddings", .to = "encoder.pos_embedding"},
        {.from = "embeddings.patch_embeddings.projection.*", .to = "conv_proj.*"},
        {.from = "layernorm.*", .to = "encoder.ln.*"},
        {.from = "pooler.**", .to = ""},
        {.from = "classifier.*", .to = "heads.head.*"},
    };
    const std::string layer = "encoder.layers.encoder_layer_*.";
    const auto add = [&](const std::string& from, const std::string& to, int64_t part = 0, int64_t parts = 1) {
      rules.push_back({.from = from, .to = layer + to, .transpose = false, .part = part, .parts = parts});
    };
    for (const std::string in_file : {"encoder.layer.*.", "layers.*."}) {
      add(in_file + "layernorm_before.*", "ln_1.*");
      add(in_file + "layernorm_after.*", "ln_2.*");
    }
    const char* const query_key_value[3][2] = {{"query", "q_proj"}, {"key", "k_proj"}, {"value", "v_proj"}};
    for (int64_t part = 0; part < 3; ++part)
      for (const std::string kind : {"weight", "bias"}) {
        const std::string to = "self_attention.in_proj_" + kind;
        add("encoder.layer.*.attention.attention." + std::string(query_key_value[part][0]) + "." + kind, to, part, 3);
        add("layers.*.attention." + std::string(query_key_value[part][1]) + "." + kind, to, part, 3);
      }
    add("encoder.layer.*.attention.output.dense.*", "self_attention.out_proj.*");
    add("encoder.layer.*.intermediate.dense.*", "mlp.0.*");
    add("encoder.layer.*.output.dense.*", "mlp.3.*");
    add("layers.*.attention.o_proj.*", "self_attention.out_proj.*");
    add("layers.*.mlp.fc1.*", "mlp.0.*");
    add("layers.*.mlp.fc2.*", "mlp.3.*");
    return rules;
  }
  std::vector<ConfigRule> config_rules() const override {
    std::vector<ConfigRule> rules = {
        {.keys = {"model_type"}, .option = "", .values = {{"vit", ""}}},
        {.keys = {"image_size"}, .option = "image_size"},
        {.keys = {"patch_size"}, .option = "patch_size"},
        {.keys = {"num_channels"}, .option = "in_channels"},
    };
    for (const ConfigRule& rule : detail::encoder_config_rules()) rules.push_back(rule);
    return rules;
  }
};

}  // namespace

[[maybe_unused]] static const bool registered_torchvision_keys = Registry<KeyMap>::add<TorchvisionKeys>(
    "torchvision_resnet", "torchvision's names, which ResNet, VisionTransformer and ConvNeXt have too.");
[[maybe_unused]] static const bool registered_hf_gpt2_keys =
    Registry<KeyMap>::add<HfGpt2Keys>("hf_gpt2", "Hugging Face's GPT2Model and GPT2LMHeadModel, for GPT.");
[[maybe_unused]] static const bool registered_hf_vit_keys = Registry<KeyMap>::add<HfVitKeys>(
    "hf_vit", "Hugging Face's ViTModel and ViTForImageClassification, for VisionTransformer.");

}  // namespace fulgur
