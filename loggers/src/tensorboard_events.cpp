#include "tensorboard_events.h"

#include <nlohmann/json.hpp>
#include <protozero/pbf_builder.hpp>

#include "fulgur/core/text/text.h"

namespace fulgur::tensorboard {
namespace {

using protozero::pbf_builder;
using protozero::pbf_tag_type;

enum class Event : pbf_tag_type { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 };
enum class SessionLog : pbf_tag_type { status = 1 };
enum class Summary : pbf_tag_type { value = 1 };
enum class Value : pbf_tag_type { tag = 1, simple_value = 2, metadata = 9 };
enum class Metadata : pbf_tag_type { plugin_data = 1 };
enum class PluginData : pbf_tag_type { plugin_name = 1, content = 2 };

constexpr int32_t kSessionStart = 1;

/// `write` adds to the event. Builders write lengths on destruction, so all of them must end before the data is
/// returned.
template <class Write>
std::string make_event(double wall_time, Write write) {
  std::string data;
  {
    pbf_builder<Event> event(data);
    event.add_double(Event::wall_time, wall_time);
    write(event);
  }
  return data;
}

}  // namespace

std::string as_utf8(std::string_view text) {
  using Json = nlohmann::json;
  if (is_utf8(text)) return std::string(text);
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

std::string version_event(double wall_time) {
  return make_event(wall_time,
                    [](pbf_builder<Event>& event) { event.add_string(Event::file_version, "brain.Event:2"); });
}

std::string session_start_event(double wall_time, int64_t step) {
  return make_event(wall_time, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::step, step);
    pbf_builder<SessionLog> session(event, Event::session_log);
    session.add_enum(SessionLog::status, kSessionStart);
  });
}

std::string scalars_event(double wall_time, int64_t step, const Metrics& metrics, std::string_view prefix) {
  return make_event(wall_time, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::step, step);
    pbf_builder<Summary> summary(event, Event::summary);
    for (const auto& [name, number] : metrics) {
      pbf_builder<Value> value(summary, Summary::value);
      value.add_string(Value::tag, as_utf8(cat(prefix, name)));
      value.add_float(Value::simple_value, static_cast<float>(number));
    }
  });
}

std::string plugin_event(double wall_time, std::string_view tag, std::string_view plugin, const std::string& content) {
  return make_event(wall_time, [&](pbf_builder<Event>& event) {
    pbf_builder<Summary> summary(event, Event::summary);
    pbf_builder<Value> value(summary, Summary::value);
    value.add_string(Value::tag, std::string(tag));
    pbf_builder<Metadata> metadata(value, Value::metadata);
    pbf_builder<PluginData> plugin_data(metadata, Metadata::plugin_data);
    plugin_data.add_string(PluginData::plugin_name, std::string(plugin));
    plugin_data.add_bytes(PluginData::content, content);
  });
}

}  // namespace fulgur::tensorboard
