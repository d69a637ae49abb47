#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/randn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/checkpoint_parts.h"

namespace fulgur::test {

/// Weights with all kinds of shapes and strides.
inline const NamedTensors& tensors() {
  static const NamedTensors all{
      {"first", at::randn({64, 33})},   {"conv", at::randn({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"scale", at::randn({})},         {"empty", at::randn({0, 2})},
      {"large", at::randn({300, 100})}, {"counts", at::arange(7)}};
  return all;
}

/// A checkpoint with them. With `ranks` above 1, each rank has written an equal part of each tensor but the last.
inline std::filesystem::path checkpoint_in(const std::filesystem::path& folder, int64_t ranks) {
  CheckpointContent content;
  content.aliases = {{"head", "large"}};
  content.optimizers = StateTree::List{StateTree::map({{"momentum", at::randn({5})}})};
  content.state["progress"] = StateTree::map({{"global_step", 1}, {"epoch", 0}});
  if (ranks == 1) {
    content.module = tensors();
    return write_checkpoint(folder / "a.ckpt", content);
  }
  const std::filesystem::path temporary = begin_parts(folder / "a.ckpt");
  std::vector<std::string> descriptions;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    CheckpointContent own = content;
    own.module = {tensors().back()};
    for (const auto& [name, tensor] : tensors()) {
      if (name == "counts") continue;
      const int64_t begin = tensor.numel() * rank / ranks, end = tensor.numel() * (rank + 1) / ranks;
      const Tensor whole = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
      own.module.emplace_back(name, whole);
      own.parts.push_back({.whole = whole,
                           .begin = begin,
                           .values = tensor.as_strided({tensor.numel()}, {1}).narrow(0, begin, end - begin)});
    }
    descriptions.push_back(write_parts(temporary, rank, ranks, own));
  }
  return commit_parts(temporary, folder / "a.ckpt", descriptions);
}

}  // namespace fulgur::test
