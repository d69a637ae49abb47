#pragma once

#include <vector>

#include "fulgur/core/contracts/key_map.h"

namespace fulgur::detail {

/// The entries of config.json that Hugging Face's BERT and ViT share, for options that have the same names in
/// BertClassifier and VisionTransformer.
inline std::vector<ConfigRule> encoder_config_rules() {
  return {
      {.keys = {"num_hidden_layers"}, .option = "num_layers"},
      {.keys = {"num_attention_heads"}, .option = "num_heads"},
      {.keys = {"hidden_size"}, .option = "hidden_dim"},
      {.keys = {"intermediate_size"}, .option = "mlp_dim"},
      {.keys = {"layer_norm_eps"}, .option = "layer_norm_eps", .otherwise = "1e-12"},
      {.keys = {"hidden_act"}, .option = "", .values = {{"gelu", ""}}},
  };
}

}  // namespace fulgur::detail
