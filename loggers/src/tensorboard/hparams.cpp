#include "tensorboard/hparams.h"

#include <cmath>
#include <functional>
#include <protozero/pbf_builder.hpp>

#include "fulgur/core/options/options.h"
#include "fulgur/core/text/text.h"
#include "tensorboard/events.h"

namespace fulgur::tensorboard {
namespace {

using protozero::pbf_builder;
using protozero::pbf_tag_type;

enum class HParamsPluginData : pbf_tag_type { experiment = 2, session_start_info = 3, session_end_info = 4 };
enum class Experiment : pbf_tag_type { hparam_infos = 4, metric_infos = 5 };
enum class HParamInfo : pbf_tag_type { name = 1, type = 4 };
enum class MetricInfo : pbf_tag_type { name = 1 };
enum class MetricName : pbf_tag_type { tag = 2 };
enum class SessionStart : pbf_tag_type { hparams = 1, start_time_secs = 5 };
enum class SessionEnd : pbf_tag_type { status = 1, end_time_secs = 2 };
enum class MapEntry : pbf_tag_type { key = 1, value = 2 };
enum class StructValue : pbf_tag_type { number = 2, text = 3, boolean = 4 };  // google.protobuf.Value

enum DataType : int32_t { kTypeText = 1, kTypeBool = 2, kTypeNumber = 3 };
enum Status : int32_t { kSuccess = 1, kFailure = 2 };

/// An event of the plug-in; `write` adds to its data. Builders write lengths on destruction, hence the block.
template <class Write>
std::string hparams_event(double wall_time, std::string_view tag, Write write) {
  std::string content;
  {
    pbf_builder<HParamsPluginData> data(content);
    write(data);
  }
  return plugin_event(wall_time, tag, "hparams", content);
}

/// As printed by Python, which Lightning writes: `[1, 2, 3]`.
std::string text_of(const ConfigNode& node) {
  if (node.is_null()) return "null";
  if (node.is_scalar()) return node.text();
  std::vector<std::string> parts;
  for (const ConfigNode& item : node.items()) parts.push_back(text_of(item));
  for (const auto& [name, item] : node.entries()) parts.push_back(cat(name, ": ", text_of(item)));
  return node.is_list() ? cat('[', join(parts), ']') : cat('{', join(parts), '}');
}

std::variant<double, bool, std::string> value_of(const ConfigNode& node) {
  Problems ignored;
  bool boolean = false;
  double number = 0;
  if (FieldTraits<bool>::read(node, boolean, ignored, "")) return boolean;
  if (FieldTraits<double>::read(node, number, ignored, "") && std::isfinite(number)) return number;
  return as_utf8(text_of(node));
}

void add_leaves(const ConfigNode& node, const std::string& parent, std::vector<HParam>& out) {
  for (const auto& [key, child] : node.entries()) {
    std::string name = as_utf8(parent.empty() ? key : cat(parent, '/', key));
    if (child.is_map()) {
      add_leaves(child, name, out);
      continue;
    }
    std::erase_if(out, [&](const HParam& other) { return other.name == name; });
    out.push_back({std::move(name), value_of(child)});
  }
}

void add_value(pbf_builder<MapEntry>& entry, const std::variant<double, bool, std::string>& held) {
  pbf_builder<StructValue> value(entry, MapEntry::value);
  if (const auto* number = std::get_if<double>(&held))
    value.add_double(StructValue::number, *number);
  else if (const auto* boolean = std::get_if<bool>(&held))
    value.add_bool(StructValue::boolean, *boolean);
  else
    value.add_string(StructValue::text, std::get<std::string>(held));
}

int32_t type_of(const HParam& hparam) {
  if (std::holds_alternative<double>(hparam.value)) return kTypeNumber;
  return std::holds_alternative<bool>(hparam.value) ? kTypeBool : kTypeText;
}

}  // namespace

std::vector<HParam> flatten_hparams(const ConfigNode& hparams) {
  std::vector<HParam> flat;
  add_leaves(hparams, "", flat);
  return flat;
}

std::vector<std::pair<std::string, std::string>> hparam_texts(const ConfigNode& hparams) {
  std::vector<std::pair<std::string, std::string>> texts;
  const std::function<void(const ConfigNode&, const std::string&)> add = [&](const ConfigNode& node,
                                                                             const std::string& parent) {
    for (const auto& [key, child] : node.entries()) {
      const std::string name = parent.empty() ? key : cat(parent, '/', key);
      if (child.is_map())
        add(child, name);
      else
        texts.emplace_back(name, text_of(child));
    }
  };
  add(hparams, "");
  return texts;
}

std::string experiment_event(double wall_time, const std::vector<HParam>& hparams, std::string_view metric) {
  return hparams_event(wall_time, "_hparams_/experiment", [&](pbf_builder<HParamsPluginData>& data) {
    pbf_builder<Experiment> experiment(data, HParamsPluginData::experiment);
    for (const HParam& hparam : hparams) {
      pbf_builder<HParamInfo> info(experiment, Experiment::hparam_infos);
      info.add_string(HParamInfo::name, hparam.name);
      info.add_enum(HParamInfo::type, type_of(hparam));
    }
    pbf_builder<MetricInfo> info(experiment, Experiment::metric_infos);
    pbf_builder<MetricName> name(info, MetricInfo::name);
    name.add_string(MetricName::tag, as_utf8(metric));
  });
}

std::string run_start_event(double wall_time, const std::vector<HParam>& hparams) {
  return hparams_event(wall_time, "_hparams_/session_start_info", [&](pbf_builder<HParamsPluginData>& data) {
    pbf_builder<SessionStart> start(data, HParamsPluginData::session_start_info);
    for (const HParam& hparam : hparams) {
      pbf_builder<MapEntry> entry(start, SessionStart::hparams);
      entry.add_string(MapEntry::key, hparam.name);
      add_value(entry, hparam.value);
    }
    start.add_double(SessionStart::start_time_secs, wall_time);
  });
}

std::string run_end_event(double wall_time, bool success) {
  return hparams_event(wall_time, "_hparams_/session_end_info", [&](pbf_builder<HParamsPluginData>& data) {
    pbf_builder<SessionEnd> end(data, HParamsPluginData::session_end_info);
    end.add_enum(SessionEnd::status, success ? kSuccess : kFailure);
    end.add_double(SessionEnd::end_time_secs, wall_time);
  });
}

}  // namespace fulgur::tensorboard
