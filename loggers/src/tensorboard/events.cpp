#include "tensorboard/events.h"

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
enum class Value : pbf_tag_type { tag = 1, simple_value = 2, image = 4, histogram = 5, tensor = 8, metadata = 9 };
enum class Image : pbf_tag_type { height = 1, width = 2, colorspace = 3, encoded = 4 };
enum class HistogramProto : pbf_tag_type {
  min = 1,
  max = 2,
  num = 3,
  sum = 4,
  sum_squares = 5,
  bucket_limit = 6,
  bucket = 7
};
enum class TensorProto : pbf_tag_type { dtype = 1, shape = 2, string_values = 8 };
enum class TensorShape : pbf_tag_type { dim = 2 };
enum class Dim : pbf_tag_type { size = 1 };
enum class Metadata : pbf_tag_type { plugin_data = 1 };
enum class PluginData : pbf_tag_type { plugin_name = 1, content = 2 };

constexpr int32_t kSessionStart = 1;
constexpr int32_t kString = 7;  // tensorflow.DataType

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

/// An event with one value; `write` adds to it.
template <class Write>
std::string value_event(double wall_time, int64_t step, std::string_view tag, Write write) {
  return make_event(wall_time, [&](pbf_builder<Event>& event) {
    event.add_int64(Event::step, step);
    pbf_builder<Summary> summary(event, Event::summary);
    pbf_builder<Value> value(summary, Summary::value);
    value.add_string(Value::tag, as_utf8(tag));
    write(value);
  });
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

std::string image_event(double wall_time, int64_t step, std::string_view tag, const EncodedImage& encoded) {
  return value_event(wall_time, step, tag, [&](pbf_builder<Value>& value) {
    pbf_builder<Image> image(value, Value::image);
    image.add_int32(Image::height, static_cast<int32_t>(encoded.height));
    image.add_int32(Image::width, static_cast<int32_t>(encoded.width));
    image.add_int32(Image::colorspace, static_cast<int32_t>(encoded.channels));
    image.add_bytes(Image::encoded, encoded.file);
  });
}

std::string histogram_event(double wall_time, int64_t step, std::string_view tag, const Histogram& values) {
  return value_event(wall_time, step, tag, [&](pbf_builder<Value>& value) {
    pbf_builder<HistogramProto> histogram(value, Value::histogram);
    histogram.add_double(HistogramProto::min, values.min);
    histogram.add_double(HistogramProto::max, values.max);
    histogram.add_double(HistogramProto::num, static_cast<double>(values.num));
    histogram.add_double(HistogramProto::sum, values.sum);
    histogram.add_double(HistogramProto::sum_squares, values.sum_squares);
    histogram.add_packed_double(HistogramProto::bucket_limit, values.limits.begin(), values.limits.end());
    histogram.add_packed_double(HistogramProto::bucket, values.counts.begin(), values.counts.end());
  });
}

std::string text_event(double wall_time, int64_t step, std::string_view tag, std::string_view text) {
  return value_event(wall_time, step, tag, [&](pbf_builder<Value>& value) {
    {
      pbf_builder<Metadata> metadata(value, Value::metadata);
      pbf_builder<PluginData> plugin_data(metadata, Metadata::plugin_data);
      plugin_data.add_string(PluginData::plugin_name, "text");
    }
    pbf_builder<TensorProto> tensor(value, Value::tensor);
    tensor.add_enum(TensorProto::dtype, kString);
    {
      pbf_builder<TensorShape> shape(tensor, TensorProto::shape);
      pbf_builder<Dim> dim(shape, TensorShape::dim);
      dim.add_int64(Dim::size, 1);
    }
    tensor.add_bytes(TensorProto::string_values, as_utf8(text));
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
