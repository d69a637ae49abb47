#pragma once

#include <algorithm>
#include <filesystem>

#include "fulgur/checkpoint/checkpoint_folder.h"

namespace fulgur::test {

/// Whether two trees are the same, bit by bit; tensors of zeros of both signs are.
inline bool same_tree(const StateTree& a, const StateTree& b) {
  if (a.type_name() != b.type_name()) return false;
  if (a.is_tensor()) return a.tensor().sizes() == b.tensor().sizes() && a.tensor().equal(b.tensor());
  if (a.is_map())
    return std::ranges::equal(a.as_map(), b.as_map(), [](const auto& x, const auto& y) {
      return x.first == y.first && same_tree(x.second, y.second);
    });
  if (a.is_list()) return std::ranges::equal(a.as_list(), b.as_list(), same_tree);
  if (a.holds<std::string>()) return a.as_string() == b.as_string();
  return a.is_null() || (a.holds<bool>() ? a.as_bool() == b.as_bool() : a.as_double() == b.as_double());
}

/// Whether two checkpoints have the same weights and states of the optimizers, as they are read.
inline bool same_content(const std::filesystem::path& a, const std::filesystem::path& b) {
  const CheckpointContent first = read_checkpoint(a), second = read_checkpoint(b);
  StateTree weights[2];
  for (const auto& [name, tensor] : first.module) weights[0][name] = tensor;
  for (const auto& [name, tensor] : second.module) weights[1][name] = tensor;
  return same_tree(weights[0], weights[1]) && same_tree(first.optimizers, second.optimizers);
}

/// The number of files with parts of tensors.
inline int64_t part_files(const std::filesystem::path& checkpoint) {
  return std::ranges::count_if(std::filesystem::directory_iterator(checkpoint), [](const auto& entry) {
    return entry.path().filename().string().find("-part-") != std::string::npos;
  });
}

}  // namespace fulgur::test
