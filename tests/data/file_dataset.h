#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/data/sample_dataset.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

inline std::string file_name(int64_t index) { return std::to_string(index) + ".bin"; }

/// Files `0.bin`, `1.bin`, … of four bytes that are the index.
inline void write_files(const std::filesystem::path& folder, int64_t count) {
  for (int64_t i = 0; i < count; ++i) write_text(folder / file_name(i), std::string(4, static_cast<char>(i)));
}

/// The bytes of a file. Throws what the standard library throws, as a user's dataset would.
inline Tensor read_bytes(const std::filesystem::path& path) {
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  const std::string text = read_text(path);
  Tensor bytes = at::empty({size}, at::kByte);
  std::copy_n(text.begin(), std::min<size_t>(text.size(), static_cast<size_t>(size)),
              bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

/// A file by sample, opened when the sample is read.
class FileDataset : public SampleDataset {
 public:
  FileDataset(std::filesystem::path folder, int64_t count) : folder_(std::move(folder)), count_(count) {}
  int64_t size() const override { return count_; }
  Sample get(int64_t index, const SampleContext&) const override {
    return {{"bytes", read_bytes(folder_ / file_name(index))}};
  }

 private:
  std::filesystem::path folder_;
  int64_t count_;
};

/// The same files as a stream, one after the other.
class FileStream : public IterableDataset {
 public:
  FileStream(std::filesystem::path folder, int64_t count) : folder_(std::move(folder)), count_(count) {}
  void reset(const SampleContext&) override { next_ = 0; }
  std::optional<Batch> next(int64_t count, const SampleContext&) override {
    const int64_t rows = std::min(count, count_ - next_);
    if (rows <= 0) return std::nullopt;
    Tensor bytes = at::empty({rows, 4}, at::kByte);
    for (int64_t i = 0; i < rows; ++i) bytes.select(0, i).copy_(read_bytes(folder_ / file_name(next_ + i)));
    next_ += rows;
    return Batch({Batch::Entry{"bytes", bytes}});
  }
  StateTree state() const override { return StateTree::map({{"next", next_}}); }
  void load_state(const StateTree& state) override { next_ = state.at("next").as_int(); }

 private:
  std::filesystem::path folder_;
  int64_t count_, next_ = 0;
};

}  // namespace fulgur::test
