#include "formats/safetensors_header.h"

#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

uint64_t data_bytes(const detail::SafetensorsHeader& header) {
  return header.entries.empty() ? 0 : header.entries.back().end;
}

}  // namespace

// Two bytes for the size of the data, then the JSON.
void safetensors_header(std::string_view input) {
  if (input.size() < 2) return;
  const uint64_t bytes =
      static_cast<unsigned char>(input[0]) | static_cast<uint64_t>(static_cast<unsigned char>(input[1])) << 8;
  detail::SafetensorsHeader header;
  try {
    header = detail::parse_safetensors_header(input.substr(2), bytes);
  } catch (const CheckpointError&) {
    return;
  }
  expect(data_bytes(header) == bytes, "the entries are all of the data");
  uint64_t next = 0;
  for (const auto& entry : header.entries) {
    expect(entry.begin == next && entry.end >= entry.begin, "entries lie one behind the other");
    next = entry.end;
  }
  const auto again = detail::parse_safetensors_header(detail::make_safetensors_header(header), bytes);
  expect(again.metadata == header.metadata && again.entries.size() == header.entries.size(), "a header comes back");
  for (size_t i = 0; i < again.entries.size(); ++i)
    expect(again.entries[i].name == header.entries[i].name && again.entries[i].shape == header.entries[i].shape,
           "an entry comes back");
}

}  // namespace fulgur::fuzz
