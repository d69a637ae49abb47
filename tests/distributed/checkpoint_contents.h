#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/safetensors.h"

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

/// The float32 copies of weights in half precision, by the names of parameters.
inline StateTree master_weights_in(const std::filesystem::path& checkpoint) {
  return read_checkpoint(checkpoint).state.at("precision").at("master_weights");
}

/// The largest difference between the float32 copies of two checkpoints, which must have the same ones.
inline double difference_of_masters(const std::filesystem::path& a, const std::filesystem::path& b) {
  const StateTree first = master_weights_in(a), second = master_weights_in(b);
  REQUIRE_FALSE(first.as_map().empty());
  REQUIRE(first.as_map().size() == second.as_map().size());
  double largest = 0;
  for (const auto& [name, value] : first.as_map()) {
    const Tensor& other = second.at(name).tensor();
    CAPTURE(name);
    REQUIRE(value.tensor().scalar_type() == at::kFloat);
    REQUIRE(value.tensor().sizes() == other.sizes());
    largest = std::max(largest, (value.tensor() - other).abs().max().item<double>());
  }
  return largest;
}

/// Whether one rank has written float32 copies, whole.
inline bool has_whole_masters(const std::filesystem::path& checkpoint) {
  return std::ranges::any_of(read_safetensors(checkpoint / "state.safetensors").tensors,
                             [](const auto& tensor) { return tensor.first.starts_with("precision.master_weights"); });
}

/// Requires a safetensors file to have the weights of a checkpoint, and nothing else.
inline void check_exported(const std::filesystem::path& file, const std::filesystem::path& checkpoint) {
  const auto tensors = read_safetensors(file).tensors;
  const CheckpointContent content = read_checkpoint(checkpoint);
  REQUIRE(tensors.size() == content.module.size());
  for (const auto& [name, tensor] : tensors)
    CHECK(std::ranges::any_of(content.module,
                              [&](const auto& other) { return other.first == name && other.second.equal(tensor); }));
}

/// The number of files with parts of tensors.
inline int64_t part_files(const std::filesystem::path& checkpoint) {
  return std::ranges::count_if(std::filesystem::directory_iterator(checkpoint), [](const auto& entry) {
    return entry.path().filename().string().find("-part-") != std::string::npos;
  });
}

}  // namespace fulgur::test
