#include "fulgur/strategies/placement.h"

#include <algorithm>
#include <optional>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr int64_t kMostDevices = 4096;  // anything larger is a typo

std::optional<int64_t> index_of(std::string_view text) {
  const auto value = parse_whole<int64_t>(text);
  return value && *value >= 0 && *value < kMostDevices ? value : std::nullopt;
}

// `2`, `cuda:2`, `0..3`.
bool add(std::string_view text, DeviceGroup& group) {
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    const std::string_view type = text.substr(0, colon);
    if (type.empty() || (!group.type.empty() && group.type != type)) return false;
    group.type = type;
    text.remove_prefix(colon + 1);
  }
  const size_t dots = text.find("..");
  const auto first = index_of(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : index_of(text.substr(dots + 2));
  if (!first || !last || *last < *first) return false;
  for (int64_t index = *first; index <= *last; ++index) group.indices.push_back(index);
  return true;
}

}  // namespace

std::vector<at::Device> DeviceGroup::resolve(const std::vector<at::Device>& devices, const std::string& where) const {
  std::vector<at::Device> found;
  const auto all = [&] {
    std::vector<std::string> names;
    for (const at::Device& device : devices) names.push_back(device.str());
    return join(names);
  };
  for (const int64_t index : indices) {
    const auto match = std::ranges::find_if(devices, [&](const at::Device& device) {
      return device.index() == index &&
             (type.empty() || type == c10::DeviceTypeName(device.type(), /*lower_case=*/true));
    });
    if (match == devices.end())
      throw ConfigError(cat(where, " ", type.empty() ? "" : type + ":", index, " is not among the devices of the run: ",
                            all(), ". Set trainer.devices so that it is, or name another."));
    if (std::ranges::find(found, *match) != found.end())
      throw ConfigError(cat(where, " ", match->str(), " is listed twice."));
    found.push_back(*match);
  }
  return found;
}

TypeInfo FieldTraits<DeviceGroup>::type() {
  const TypeInfo index{.kind = TypeInfo::Kind::integer, .name = "int", .minimum = 0};
  const TypeInfo text{.kind = TypeInfo::Kind::string,
                      .name = "device or range of devices",
                      .pattern = R"(^([a-z]+:)?[0-9]+(\.\.[0-9]+)?$)"};
  return {.kind = TypeInfo::Kind::any_of,
          .name = "device, or list of devices",
          .parts = {index,
                    text,
                    {.kind = TypeInfo::Kind::list,
                     .name = "list of devices",
                     .min_items = 1,
                     .parts = {{.kind = TypeInfo::Kind::any_of, .name = "device", .parts = {index, text}}}}}};
}

bool FieldTraits<DeviceGroup>::read(const ConfigNode& node, DeviceGroup& value, Problems& problems,
                                    const std::string& path) {
  DeviceGroup group;
  bool good = !node.is_map() && !node.is_null();
  if (good && node.is_list()) {
    for (const ConfigNode& item : node.items()) good = good && item.is_scalar() && add(item.text(), group);
    good = good && !group.indices.empty();
  } else if (good) {
    good = add(node.text(), group);
  }
  if (!good) {
    problems.add(node.where, path, "expected devices by their index: 1, cuda:1, [0, 1] or [0..3]");
    return false;
  }
  value = std::move(group);
  return true;
}

ConfigNode FieldTraits<DeviceGroup>::write(const DeviceGroup& value) {
  const auto one = [&](int64_t index) {
    return value.type.empty() ? ConfigNode::integer(index) : ConfigNode::string(cat(value.type, ":", index));
  };
  if (value.indices.size() == 1) return one(value.indices.front());
  std::vector<ConfigNode> items;
  for (const int64_t index : value.indices) items.push_back(one(index));
  return ConfigNode::list(std::move(items));
}

}  // namespace fulgur
