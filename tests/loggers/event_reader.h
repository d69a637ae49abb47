#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "files/tf_record.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// An event of TensorBoard, as far as the logger writes it.
struct TestEvent {
  struct Value {
    std::string tag;
    std::optional<float> number;
    std::string plugin;
    std::string content;
  };
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool session_start = false;
  std::vector<Value> values;
};

inline uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The records of a file; every length and CRC is checked, and that the file ends with a record.
inline std::vector<std::string> read_records(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> records;
  for (std::string_view rest = text; !rest.empty();) {
    REQUIRE(rest.size() >= 16);
    const uint64_t length = little_endian(rest.substr(0, 8));
    REQUIRE(rest.size() - 16 >= length);
    CHECK(little_endian(rest.substr(8, 4)) == masked_crc(crc32c(rest.substr(0, 8))));
    records.emplace_back(rest.substr(12, length));
    CHECK(little_endian(rest.substr(12 + length, 4)) == masked_crc(crc32c(records.back())));
    rest.remove_prefix(16 + length);
  }
  return records;
}

inline TestEvent::Value read_value(protozero::pbf_reader reader) {
  TestEvent::Value value;
  while (reader.next()) {
    if (reader.tag() == 1)
      value.tag = reader.get_string();
    else if (reader.tag() == 2)
      value.number = reader.get_float();
    else if (reader.tag() == 9) {
      protozero::pbf_reader metadata = reader.get_message();
      REQUIRE(metadata.next(1));
      protozero::pbf_reader plugin = metadata.get_message();
      while (plugin.next()) {
        std::string& field = plugin.tag() == 1 ? value.plugin : value.content;  // reading the field forgets its tag
        field = plugin.get_string();
      }
    } else
      reader.skip();
  }
  return value;
}

inline TestEvent read_event(const std::string& data) {
  TestEvent event;
  protozero::pbf_reader reader(data);
  while (reader.next()) {
    if (reader.tag() == 1)
      event.wall_time = reader.get_double();
    else if (reader.tag() == 2)
      event.step = reader.get_int64();
    else if (reader.tag() == 3)
      event.file_version = reader.get_string();
    else if (reader.tag() == 5) {
      protozero::pbf_reader summary = reader.get_message();
      while (summary.next(1)) event.values.push_back(read_value(summary.get_message()));
    } else if (reader.tag() == 7) {
      protozero::pbf_reader session = reader.get_message();
      event.session_start = session.next(1) && session.get_enum() == 1;
    } else
      reader.skip();
  }
  return event;
}

/// The event files of a folder in the order in which TensorBoard reads them.
inline std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// All events of a folder, but the first of each file, which is checked.
inline std::vector<TestEvent> read_events(const std::filesystem::path& folder) {
  std::vector<TestEvent> events;
  for (const auto& file : event_files(folder)) {
    const auto records = read_records(file);
    REQUIRE_FALSE(records.empty());
    CHECK(read_event(records[0]).file_version == "brain.Event:2");
    for (size_t i = 1; i < records.size(); ++i) events.push_back(read_event(records[i]));
  }
  return events;
}

/// Tags of all values, in their order.
inline std::vector<std::string> tags(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  for (const TestEvent& event : read_events(folder))
    for (const auto& value : event.values) found.push_back(value.tag);
  return found;
}

}  // namespace fulgur::test
