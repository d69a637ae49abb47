#include "fulgur/checkpoint/safetensors_writer.h"

#include "formats/safetensors_file.h"
#include "fulgur/core/system/durable_file.h"

namespace fulgur {

namespace {

struct Place {
  uint64_t begin = 0, row_bytes = 0;
};

struct Layout {
  explicit Layout(const std::vector<SafetensorsWriter::Entry>& entries) {
    detail::SafetensorsHeader header;
    for (const auto& entry : entries) {
      const char* const dtype = detail::name_of_dtype(entry.dtype, entry.name);
      uint64_t row_bytes = detail::element_bytes(dtype);
      for (size_t i = 1; i < entry.shape.size(); ++i) row_bytes *= static_cast<uint64_t>(entry.shape[i]);
      const uint64_t end = data_bytes + row_bytes * static_cast<uint64_t>(entry.shape.at(0));
      header.entries.push_back({entry.name, dtype, entry.shape, data_bytes, end});
      places.push_back({data_bytes, row_bytes});
      data_bytes = end;
    }
    prefix = detail::make_safetensors_prefix(header);
    for (Place& place : places) place.begin += prefix.size();
  }

  std::string prefix;
  std::vector<Place> places;
  uint64_t data_bytes = 0;
};

}  // namespace

struct SafetensorsWriter::Impl {
  Impl(const std::filesystem::path& path, const std::vector<Entry>& entries) : layout(entries), file(path) {
    file.reserve(layout.prefix.size() + layout.data_bytes);
    file.write(layout.prefix);
  }

  Layout layout;
  detail::DurableFile file;
};

void SafetensorsWriter::check(const std::vector<Entry>& entries) { Layout{entries}; }

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries)
    : impl_(std::make_unique<Impl>(path, entries)) {}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(size_t index, int64_t first_row, const Tensor& rows) {
  const Place& place = impl_->layout.places.at(index);
  impl_->file.write_at(place.begin + static_cast<uint64_t>(first_row) * place.row_bytes, rows.const_data_ptr(),
                       rows.nbytes());
}

void SafetensorsWriter::commit() { impl_->file.commit(); }

}  // namespace fulgur
