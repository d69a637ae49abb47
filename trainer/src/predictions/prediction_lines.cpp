#include "predictions/prediction_lines.h"

#include <cmath>
#include <nlohmann/json.hpp>

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

std::string prediction_lines(const std::vector<std::pair<std::string, Tensor>>& columns,
                             std::optional<size_t> loader_idx) {
  std::string lines;
  const int64_t rows = columns.empty() ? 0 : columns.front().second.size(0);
  for (int64_t i = 0; i < rows; ++i) {
    Json line = Json::object();
    if (loader_idx) line["dataloader_idx"] = *loader_idx;
    for (const auto& [name, value] : columns) line[name] = row_of(value[i]);
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }
  return lines;
}

}  // namespace fulgur::detail
