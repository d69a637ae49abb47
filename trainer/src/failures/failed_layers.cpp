#include "failures/failed_layers.h"

#include <algorithm>
#include <regex>
#include <vector>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct Wanted {
  std::vector<std::string> shapes;  // the shapes that the weight may have
  std::string_view name;            // the last part of its name; empty: any
};

std::optional<Wanted> wanted_by(const std::string& error) {
  std::smatch found;
  // A linear layer's weight is the transposed second matrix.
  static const std::regex kProduct(R"(shapes cannot be multiplied \(\d+x\d+ and (\d+)x(\d+)\))");
  if (std::regex_search(error, found, kProduct))
    return Wanted{{cat("[", found.str(2), ", ", found.str(1), "]"), cat("[", found.str(1), ", ", found.str(2), "]")},
                  ""};
  static const std::regex kWeight(R"((?:weight of size|normalized_shape=) ?(\[[\d, ]+\]))");
  if (std::regex_search(error, found, kWeight)) return Wanted{{found.str(1)}, ""};
  static const std::regex kStatistics(R"((running_mean|running_var) should contain \d+ elements not (\d+))");
  if (std::regex_search(error, found, kStatistics))
    return Wanted{{cat("[", found.str(2), "]")}, found.str(1) == "running_mean" ? "running_mean" : "running_var"};
  static const std::regex kOneSample(R"(more than 1 value per channel when training, got input size \[\d+, (\d+))");
  if (std::regex_search(error, found, kOneSample)) return Wanted{{cat("[", found.str(1), "]")}, "running_mean"};
  return std::nullopt;
}

constexpr size_t kMostNames = 5;

template <class Function>
void each_tensor(const LightningModule& module, Function function) {
  for (const auto& item : module.named_parameters()) function(item.key(), item.value());
  for (const auto& item : module.named_buffers()) function(item.key(), item.value());
}

std::optional<std::string> by_shape(const Wanted& wanted, const LightningModule& module) {
  std::vector<std::string> names;
  each_tensor(module, [&](const std::string& name, const Tensor& value) {
    const std::string shape = shape_text(value.sizes());
    const size_t dot = name.rfind('.');
    const std::string last = name.substr(dot == name.npos ? 0 : dot + 1);
    if (!wanted.name.empty() ? last != wanted.name : last.starts_with("running_")) return;
    if (std::ranges::find(wanted.shapes, shape) != wanted.shapes.end()) names.push_back(cat(name, " ", shape));
  });
  if (names.empty()) return std::nullopt;
  return cat("in the module, these have the shape in the error: ", join_some(names, kMostNames));
}

std::string by_device(const LightningModule& module, at::Device device) {
  std::vector<std::string> names;
  each_tensor(module, [&](const std::string& name, const Tensor& value) {
    if (value.defined() && value.device() != device) names.push_back(cat(name, " on ", value.device().str()));
  });
  if (names.empty())
    return cat("all parameters and buffers that are registered are on ", device.str(),
               ", so the other tensor is not one of them");
  return cat("in the module, these are not on ", device.str(), ": ", join_some(names, kMostNames));
}

}  // namespace

std::optional<std::string> failed_layers(std::string_view error, const LightningModule& module, at::Device device) {
  if (error.find("on the same device") != error.npos) return by_device(module, device);
  const auto wanted = wanted_by(std::string(error));
  return wanted ? by_shape(*wanted, module) : std::nullopt;
}

}  // namespace fulgur::detail
