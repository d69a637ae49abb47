#include "columns/table_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {

int part_of_row(const SplitOptions& split, int64_t row) {
  SplitMix64 random(mix_bits(static_cast<uint64_t>(split.split_seed) + 0x9e3779b97f4a7c15u) ^
                    static_cast<uint64_t>(row));
  // Both are drawn for each row, so that the test part does not depend on the rest.
  const double for_test = random.uniform(), for_val = random.uniform();
  if (for_test < split.test_fraction) return 2;
  if (const auto fold = split.fold.empty() ? std::nullopt : Fold::from(split.fold))
    return static_cast<int64_t>(for_val * static_cast<double>(fold->count)) + 1 == fold->number ? 1 : 0;
  return for_val < split.val_fraction / (1 - split.test_fraction) ? 1 : 0;
}

TableStream::TableStream(std::shared_ptr<const RowEncoder> encoder, const SplitOptions& split, char delimiter,
                         StreamPart part)
    : encoder_(std::move(encoder)),
      split_(split),
      delimiter_(delimiter),
      part_(std::move(part)),
      fingerprints_(part_.paths) {}

void TableStream::set_share(int64_t rank, int64_t world_size) {
  rank_ = rank;
  world_size_ = world_size;
}

std::optional<int64_t> TableStream::samples() const {
  if (!part_.rows) return std::nullopt;
  return *part_.rows <= rank_ ? 0 : (*part_.rows - rank_ - 1) / world_size_ + 1;
}

void TableStream::reset(const SampleContext& context) {
  context_ = context;
  if (rows_)
    rows_->restart();
  else
    rows_ = std::make_unique<TableRows>(part_.paths, delimiter_, encoder_->columns());
  files_ = fingerprints_.current();
  position_ = {.place = rows_->place()};
  block_start_ = position_;
  block_ = -1;
  order_.clear();
  returned_ = 0;
}

/// Moves to the next row of this process.
bool TableStream::next_row() {
  while (rows_->next()) {
    const int64_t row = position_.row++;
    if (part_.part >= 0 && part_of_row(split_, row) != part_.part) continue;
    if (position_.row_of_part++ % world_size_ == rank_) return true;
  }
  return false;
}

Batch TableStream::empty(int64_t rows) const {
  Batch batch = encoder_->empty(rows);
  if (part_.with_index) batch.add("index", at::empty({rows}, at::kLong));
  return batch;
}

bool TableStream::read_block() {
  position_.place = rows_->place();
  block_start_ = position_;
  ++block_;
  returned_ = 0;
  if (buffer_.empty()) buffer_ = empty(part_.buffer_rows);
  auto* const numbers = part_.with_index ? buffer_["index"].mutable_data_ptr<int64_t>() : nullptr;
  int64_t filled = 0;
  while (filled < part_.buffer_rows && next_row()) {
    if (numbers) numbers[filled] = position_.row - 1;
    encoder_->encode(*rows_, buffer_, filled++);
  }
  order_.resize(static_cast<size_t>(filled));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (part_.shuffle) {
    SplitMix64 random = context_.random(block_);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
  return filled > 0;
}

std::optional<Batch> TableStream::next(int64_t count, const SampleContext&) {
  Batch out;
  int64_t done = 0;
  while (done < count) {
    const auto left = static_cast<int64_t>(order_.size()) - returned_;
    if (left == 0) {
      if (!read_block()) break;
      continue;
    }
    if (out.empty()) out = empty(count);
    const int64_t rows = std::min(count - done, left);
    const Tensor indices = at::from_blob(order_.data() + returned_, {rows}, at::kLong);
    for (size_t i = 0; i < out.entries(); ++i) out[i].narrow(0, done, rows).copy_(buffer_[i].index_select(0, indices));
    done += rows;
    returned_ += rows;
  }
  if (done == 0) return std::nullopt;
  return done == count ? std::move(out) : out.narrow(0, done);
}

StateTree TableStream::state() const {
  return StateTree::map({{"file", static_cast<int64_t>(block_start_.place.file)},
                         {"byte", block_start_.place.in_file.byte},
                         {"line", block_start_.place.in_file.line},
                         {"row", block_start_.row},
                         {"row_of_part", block_start_.row_of_part},
                         {"block", block_},
                         {"returned", returned_},
                         {"buffer_rows", part_.buffer_rows},
                         {"files", files_}});
}

void TableStream::load_state(const StateTree& state) {
  const int64_t file = state.at("file").as_int(), block = state.at("block").as_int();
  const int64_t returned = state.at("returned").as_int(), buffer_rows = state.at("buffer_rows").as_int();
  Position start{.place = {static_cast<size_t>(std::max<int64_t>(file, 0)),
                           {state.at("byte").as_int(), state.at("line").as_int()}},
                 .row = state.at("row").as_int(),
                 .row_of_part = state.at("row_of_part").as_int()};
  if (file < 0 || block < -1 || returned < 0 || start.place.in_file.byte < 0 || start.place.in_file.line < 1 ||
      start.row < 0 || start.row_of_part < 0)
    throw CheckpointError("[tables.stream] a position in a table must not be negative. The checkpoint is damaged.");
  if (buffer_rows != part_.buffer_rows)
    throw CheckpointError(cat("[tables.stream] the checkpoint was saved within an epoch with shuffle_buffer ",
                              buffer_rows, ", but the run has ", part_.buffer_rows,
                              ". Resume with the same shuffle_buffer."));
  if (state.at("files").as_string() != files_)
    throw CheckpointError(
        cat("[tables.stream] the files and their order must not change within an epoch; those that begin with '",
            escape_controls(part_.paths.front().string()),
            "' are not those that the checkpoint was saved with. Resume from a checkpoint of the end of an epoch."));
  rows_->seek(start.place);
  position_ = start;
  block_ = block - 1;
  order_.clear();
  returned_ = 0;
  if (block < 0) {
    block_ = -1;
    return;
  }
  read_block();
  if (returned > static_cast<int64_t>(order_.size()))
    throw CheckpointError(
        cat("[tables.stream] the files must have the rows that they had; the checkpoint continues "
            "after row ",
            returned, " of a block that has ", order_.size(), " now."));
  returned_ = returned;
}

}  // namespace fulgur::tables
