#include "files/file_mark.h"

#include "files/tf_record.h"

namespace fulgur {

FileMark FileMark::of(std::string_view text) {
  FileMark mark;
  mark.add(text);
  return mark;
}

void FileMark::add(std::string_view more) {
  bytes += more.size();
  crc = crc32c(more, crc);
}

bool FileMark::begins(std::string_view text) const {
  return text.size() >= bytes && of(text.substr(0, bytes)) == *this;
}

void FileMark::write(StateTree& state) const {
  state["bytes"] = bytes;
  state["crc32c"] = static_cast<int64_t>(crc);
}

FileMark FileMark::read(const StateTree& state) {
  return {.bytes = state.at("bytes").as_uint(), .crc = static_cast<uint32_t>(state.at("crc32c").as_int())};
}

}  // namespace fulgur
