#include "predictions.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/state_bytes.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json numbers(const Tensor& row) {
  Json list = Json::array();
  const T* data = row.const_data_ptr<T>();
  for (int64_t i = 0; i < row.numel(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(data[i]))
        list.push_back("NaN");
      else if (std::isinf(data[i]))
        list.push_back(data[i] > 0 ? "Infinity" : "-Infinity");
      else
        list.push_back(data[i]);
    } else {
      list.push_back(data[i]);
    }
  }
  return list;
}

// Numbers of one dimension, as nested lists by the shape of the row.
Json nested(Json& flat, c10::ArrayRef<int64_t> sizes, size_t& next) {
  if (sizes.empty()) return std::move(flat[next++]);
  Json list = Json::array();
  for (int64_t i = 0; i < sizes.front(); ++i) list.push_back(nested(flat, sizes.slice(1), next));
  return list;
}

Json row_of(const Tensor& row) {
  Json flat;
  switch (row.scalar_type()) {
    case at::kFloat:
      flat = numbers<float>(row);
      break;
    case at::kDouble:
      flat = numbers<double>(row);
      break;
    case at::kLong:
      flat = numbers<int64_t>(row);
      break;
    case at::kBool:
      flat = numbers<bool>(row);
      break;
    default:
      flat = row.is_floating_point() ? numbers<float>(row.to(at::kFloat)) : numbers<int64_t>(row.to(at::kLong));
  }
  size_t next = 0;
  return nested(flat, row.sizes(), next);
}

}  // namespace

Outputs in_dataset_order(Collectives& collectives, Outputs own, bool in_turns) {
  const int64_t world_size = collectives.world_size();
  if (world_size == 1) return own;
  StateTree::List packed;
  for (const auto& [name, value] : own) packed.push_back(StateTree::map({{"name", name}, {"value", value}}));
  std::vector<StateTree> ranks;
  for (const std::string& text : collectives.gather_text(pack_state(packed))) ranks.push_back(unpack_state(text));
  Outputs all;
  // A rank without a sample has no outputs.
  const StateTree* first = nullptr;
  for (const StateTree& rank : ranks)
    if (!first && !rank.as_list().empty()) first = &rank;
  for (size_t column = 0; first && column < first->as_list().size(); ++column) {
    const std::string& name = first->as_list()[column].at("name").as_string();
    std::vector<Tensor> parts;
    int64_t rows = 0;
    for (const StateTree& rank : ranks) {
      if (rank.as_list().empty()) {
        parts.push_back(first->as_list()[column].at("value").tensor().narrow(0, 0, 0));
        continue;
      }
      if (column >= rank.as_list().size() || rank.as_list()[column].at("name").as_string() != name)
        throw Error(
            cat("[trainer.predict] every rank must return the same outputs; '", name, "' is not in its place on all."));
      parts.push_back(rank.as_list()[column].at("value").tensor());
      rows += parts.back().size(0);
    }
    std::vector<int64_t> sizes = parts.front().sizes().vec();
    sizes[0] = rows;
    Tensor whole = at::empty(sizes, parts.front().options());
    bool shared_out = in_turns;
    for (int64_t r = 0; r < world_size; ++r)
      shared_out = shared_out && parts[static_cast<size_t>(r)].size(0) == (rows - r + world_size - 1) / world_size;
    if (shared_out)
      for (int64_t r = 0; r < world_size && r < rows; ++r)
        whole.slice(0, r, rows, world_size).copy_(parts[static_cast<size_t>(r)]);
    else
      whole = at::cat(parts);  // rank by rank
    all.add(name, std::move(whole));
  }
  return all;
}

std::vector<std::filesystem::path> write_predictions(const std::filesystem::path& folder,
                                                     const std::vector<Outputs>& loaders) {
  const bool several = loaders.size() > 1;
  NamedTensors tensors;
  for (size_t l = 0; l < loaders.size(); ++l)
    for (const auto& [name, value] : loaders[l])
      tensors.emplace_back(several ? cat("dataloader_idx_", l, "/", name) : name, value.contiguous());
  const std::filesystem::path binary = folder / "predictions.safetensors", lines = folder / "predictions.jsonl";
  write_safetensors(binary, tensors);
  std::ofstream file(lines, std::ios::binary);
  for (size_t l = 0; l < loaders.size(); ++l) {
    if (loaders[l].empty()) continue;
    std::vector<std::pair<std::string, Tensor>> columns;
    for (const auto& [name, value] : loaders[l]) columns.emplace_back(name, value.contiguous());
    for (int64_t i = 0; i < columns.front().second.size(0); ++i) {
      Json line = Json::object();
      if (several) line["dataloader_idx"] = l;
      for (const auto& [name, value] : columns) line[name] = row_of(value[i]);
      file << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    }
  }
  file.close();
  if (!file) throw CheckpointError(cat("[trainer.predict] ", lines, " could not be written. Is the disk full?"));
  return {binary, lines};
}

}  // namespace fulgur::detail
