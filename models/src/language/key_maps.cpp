#include "fulgur/core/contracts/key_map.h"

#include "fulgur/core/contracts/registry.h"
#include "parts/encoder_config_rules.h"

namespace fulgur {
namespace {

/// LlamaModel and LlamaForCausalLM. Queries, keys and values are one layer here, and so are gate and values of SwiGLU.
class HfLlamaKeys final : public KeyMap {
 public:
  std::string prefix() const override { return "model."; }
  std::vector<KeyRule> rules() const override {
    std::vector<KeyRule> rules = {
        {.from = "embed_tokens.weight", .to = "transformer.wte.weight"},
        {.from = "norm.weight", .to = "transformer.ln_f.weight"},
        // Wave lengths, which old files contain.
        {.from = "layers.*.self_attn.rotary_emb.inv_freq", .to = ""},
    };
    const auto add = [&](const std::string& from, const std::string& to, int64_t part = 0, int64_t parts = 1) {
      rules.push_back({.from = "layers.*." + from,
                       .to = "transformer.h.*." + to,
                       .transpose = false,
                       .part = part,
                       .parts = parts});
    };
    add("input_layernorm.weight", "ln_1.weight");
    add("post_attention_layernorm.weight", "ln_2.weight");
    // The biases are those of models that are no Llamas but have its names.
    for (const std::string kind : {"weight", "bias"}) {
      add("self_attn.q_proj." + kind, "attn.c_attn." + kind, 0, 3);
      add("self_attn.k_proj." + kind, "attn.c_attn." + kind, 1, 3);
      add("self_attn.v_proj." + kind, "attn.c_attn." + kind, 2, 3);
      add("self_attn.o_proj." + kind, "attn.c_proj." + kind);
      add("mlp.gate_proj." + kind, "mlp.c_fc." + kind, 0, 2);
      add("mlp.up_proj." + kind, "mlp.c_fc." + kind, 1, 2);
      add("mlp.down_proj." + kind, "mlp.c_proj." + kind);
    }
    return rules;
  }
  std::vector<ConfigRule> config_rules() const override {
    return {
        // Others have these names and compute something else; Mistral differs only in its window.
        {.keys = {"model_type"}, .option = "", .values = {{"llama", ""}, {"mistral", ""}}},
        {.keys = {"sliding_window"}, .option = "", .values = {{"null", ""}}},
        {.keys = {"vocab_size"}, .option = "vocab_size"},
        // Rotary positions have no weights, so shorter sequences give the same numbers.
        {.keys = {"max_position_embeddings"}, .option = "block_size", .exact = false},
        {.keys = {"num_hidden_layers"}, .option = "n_layer"},
        {.keys = {"num_attention_heads"}, .option = "n_head"},
        {.keys = {"num_key_value_heads"}, .option = "n_kv_head"},
        {.keys = {"hidden_size"}, .option = "n_embd"},
        {.keys = {"intermediate_size"}, .option = "mlp_hidden"},
        {.keys = {"rms_norm_eps"}, .option = "norm_eps", .otherwise = "1e-06"},
        {.keys = {"rope_theta", "rope_parameters.rope_theta"}, .option = "rope_theta", .otherwise = "10000.0"},
        {.keys = {"tie_word_embeddings"}, .option = "tie_weights", .otherwise = "false"},
        {.keys = {"attention_bias"}, .option = "bias", .otherwise = "false"},
        {.keys = {"mlp_bias"}, .option = "bias", .otherwise = "false"},
        {.keys = {}, .option = "positions", .otherwise = "rotary"},
        {.keys = {}, .option = "norm", .otherwise = "rms"},
        {.keys = {}, .option = "mlp", .otherwise = "swiglu"},
        {.keys = {"hidden_act"}, .option = "", .values = {{"silu", ""}, {"swish", ""}}},
        {.keys = {"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"},
         .option = "",
         .values = {{"default", ""}}},
    };
  }
};

/// BertModel and BertForSequenceClassification. Heads of the pretraining are left out.
class HfBertKeys final : public KeyMap {
 public:
  std::string prefix() const override { return "bert."; }
  std::vector<KeyRule> rules() const override {
    std::vector<KeyRule> rules = {
        {.from = "embeddings.position_ids", .to = ""},
        {.from = "embeddings.word_embeddings.weight", .to = "embeddings.token.weight"},
        {.from = "embeddings.position_embeddings.weight", .to = "embeddings.position.weight"},
        {.from = "embeddings.token_type_embeddings.weight", .to = "embeddings.type.weight"},
        {.from = "pooler.dense.*", .to = "pooler.*"},
        {.from = "cls.**", .to = ""},
    };
    const auto add = [&](const std::string& from, const std::string& to, int64_t part = 0, int64_t parts = 1) {
      rules.push_back({.from = from, .to = to, .transpose = false, .part = part, .parts = parts});
    };
    const auto add_norm = [&](const std::string& from, const std::string& to) {
      add(from + ".gamma", to + ".weight");  // names of old files
      add(from + ".beta", to + ".bias");
      add(from + ".*", to + ".*");
    };
    const std::string theirs = "encoder.layer.*.", ours = "layers.*.";
    add_norm("embeddings.LayerNorm", "embeddings.norm");
    for (const std::string kind : {"weight", "bias"}) {
      add(theirs + "attention.self.query." + kind, ours + "attention.in_proj." + kind, 0, 3);
      add(theirs + "attention.self.key." + kind, ours + "attention.in_proj." + kind, 1, 3);
      add(theirs + "attention.self.value." + kind, ours + "attention.in_proj." + kind, 2, 3);
    }
    add(theirs + "attention.output.dense.*", ours + "attention.out_proj.*");
    add_norm(theirs + "attention.output.LayerNorm", ours + "norm_1");
    add(theirs + "intermediate.dense.*", ours + "widen.*");
    add(theirs + "output.dense.*", ours + "narrow.*");
    add_norm(theirs + "output.LayerNorm", ours + "norm_2");
    return rules;
  }
  std::vector<ConfigRule> config_rules() const override {
    std::vector<ConfigRule> rules = {
        // RoBERTa has these names, and other positions.
        {.keys = {"model_type"}, .option = "", .values = {{"bert", ""}}},
        {.keys = {"is_decoder"}, .option = "", .values = {{"false", ""}}},
        {.keys = {"vocab_size"}, .option = "vocab_size"},
        {.keys = {"max_position_embeddings"}, .option = "max_length"},
        {.keys = {"type_vocab_size"}, .option = "type_vocab_size"},
    };
    for (const ConfigRule& rule : detail::encoder_config_rules()) rules.push_back(rule);
    rules.push_back({.keys = {"position_embedding_type"}, .option = "", .values = {{"absolute", ""}}});
    return rules;
  }
};

}  // namespace

[[maybe_unused]] static const bool registered_hf_llama_keys =
    Registry<KeyMap>::add<HfLlamaKeys>("hf_llama", "Hugging Face's LlamaModel and LlamaForCausalLM, for GPT.");
[[maybe_unused]] static const bool registered_hf_bert_keys = Registry<KeyMap>::add<HfBertKeys>(
    "hf_bert", "Hugging Face's BertModel and BertForSequenceClassification, for BertClassifier.");

}  // namespace fulgur
