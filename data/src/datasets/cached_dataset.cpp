#include "fulgur/data/cached_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

enum class SampleState : uint8_t { absent, being_written, kept };

/// Memory of a file without a name in `folder`, uint8.
Tensor memory_on_disk(const std::filesystem::path& folder, int64_t bytes) {
  const auto refuse = [&](const char* what, int code) {
    throw DataError(cat("[data.CachedDataset] a file of ", bytes, " bytes is needed in the folder '",
                        escape_controls(folder.string()), "'; ", what, " failed: ", std::strerror(code),
                        ". Choose another folder or a smaller max_bytes."));
  };
  std::string name = (folder / "fulgur_cache_XXXXXX").string();
  const detail::UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) refuse("making it", errno);
  ::unlink(name.c_str());
  // Reserved: writing into a hole of a full disk would end the process by a signal.
  if (const int code = ::posix_fallocate(fd.get(), 0, bytes); code != 0) refuse("reserving its space", code);
  const auto size = static_cast<size_t>(bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) refuse("mapping it", errno);
  return at::from_blob(
      memory, {bytes}, [size](void* mapped) { ::munmap(mapped, size); }, at::kByte);
}

}  // namespace

struct CachedDataset::Impl {
  std::shared_ptr<const Dataset> source;
  Batch prototype;
  std::vector<size_t> row_bytes;                 // of each entry
  std::vector<char*> rows;                       // of each entry, of the kept samples
  Tensor memory;                                 // uint8
  std::vector<std::atomic<SampleState>> states;  // of the kept samples

  /// Copies sample `index` between the cache and row `row` of `batch`.
  void copy(int64_t index, Batch& batch, int64_t row, bool into_cache) const {
    for (size_t i = 0; i < row_bytes.size(); ++i) {
      if (row_bytes[i] == 0) continue;
      char* kept = rows[i] + static_cast<size_t>(index) * row_bytes[i];
      char* other = static_cast<char*>(batch[i].mutable_data_ptr()) + static_cast<size_t>(row) * row_bytes[i];
      into_cache ? std::memcpy(kept, other, row_bytes[i]) : std::memcpy(other, kept, row_bytes[i]);
    }
  }
};

CachedDataset::CachedDataset(std::shared_ptr<const Dataset> source, CacheOptions options)
    : impl_(std::make_unique<Impl>()) {
  if (!source) throw ConfigError("[data.CachedDataset] a dataset is needed; got none.");
  if (options.max_bytes < 0)
    throw ConfigError(cat("[data.CachedDataset] max_bytes must not be negative; got ", options.max_bytes, "."));
  Impl& m = *impl_;
  m.source = std::move(source);
  m.prototype = m.source->prototype();
  int64_t sample_bytes = 0;
  for (const auto& [name, value] : m.prototype) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr)
      throw DataError(cat("[data.CachedDataset] the entries of samples must be tensors; '", name, "' is a list."));
    m.row_bytes.push_back(static_cast<size_t>(tensor->numel()) * tensor->element_size());
    sample_bytes += static_cast<int64_t>(m.row_bytes.back());
  }
  const int64_t capacity = sample_bytes == 0 ? 0 : std::min(m.source->size(), options.max_bytes / sample_bytes);
  m.states = std::vector<std::atomic<SampleState>>(static_cast<size_t>(capacity));
  if (capacity == 0) return;
  m.memory = options.folder.empty() ? at::empty({capacity * sample_bytes}, at::kByte)
                                    : memory_on_disk(options.folder, capacity * sample_bytes);
  auto* next = static_cast<char*>(m.memory.mutable_data_ptr());
  for (const size_t bytes : m.row_bytes) {
    m.rows.push_back(next);
    next += static_cast<size_t>(capacity) * bytes;
  }
}

CachedDataset::~CachedDataset() = default;

int64_t CachedDataset::size() const { return impl_->source->size(); }

Batch CachedDataset::prototype() const { return impl_->prototype; }

int64_t CachedDataset::capacity() const { return static_cast<int64_t>(impl_->states.size()); }

void CachedDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                         const SampleContext& context) const {
  Impl& m = *impl_;
  // A loader with a collate function takes each row as a tensor, which may keep it.
  const bool is_list = out.entries() > 0 && std::holds_alternative<std::vector<Tensor>>(out.entry(0).second);
  if (is_list) {
    Batch rows;
    for (const auto& [name, value] : m.prototype) {
      const Tensor& sample = std::get<Tensor>(value);
      std::vector<int64_t> sizes = sample.sizes().vec();
      sizes[0] = static_cast<int64_t>(indices.size());
      rows.add(name, at::empty(sizes, sample.options()));
    }
    read(indices, 0, rows, context);
    for (size_t i = 0; i < out.entries(); ++i)
      for (size_t row = 0; row < indices.size(); ++row)
        std::get<std::vector<Tensor>>(out.entry(i).second)[static_cast<size_t>(first_row) + row] =
            rows[i].select(0, static_cast<int64_t>(row));
    return;
  }
  const auto kept_at = [&](int64_t index) -> std::atomic<SampleState>* {
    return index >= 0 && index < capacity() ? &m.states[static_cast<size_t>(index)] : nullptr;
  };
  for (size_t begin = 0; begin < indices.size();) {
    const auto* state = kept_at(indices[begin]);
    if (state && state->load(std::memory_order_acquire) == SampleState::kept) {
      m.copy(indices[begin], out, first_row + static_cast<int64_t>(begin), /*into_cache=*/false);
      ++begin;
      continue;
    }
    // Samples that are absent are read together.
    size_t end = begin + 1;
    const auto is_absent = [&](int64_t index) {
      const auto* other = kept_at(index);
      return !other || other->load(std::memory_order_acquire) != SampleState::kept;
    };
    while (end < indices.size() && is_absent(indices[end])) ++end;
    m.source->read(indices.slice(begin, end - begin), first_row + static_cast<int64_t>(begin), out, context);
    for (; begin < end; ++begin) {
      auto* to = kept_at(indices[begin]);
      SampleState expected = SampleState::absent;
      if (!to || !to->compare_exchange_strong(expected, SampleState::being_written)) continue;
      m.copy(indices[begin], out, first_row + static_cast<int64_t>(begin), /*into_cache=*/true);
      to->store(SampleState::kept, std::memory_order_release);
    }
  }
}

}  // namespace fulgur
