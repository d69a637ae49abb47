#include "predictions/merged_predictions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using Column = MergedPredictions::Column;

// At most this many rows are read at a time, even if they have no bytes.
constexpr int64_t kMostRows = 1 << 16;

StateTree looks_of(const PredictedShare& share) {
  StateTree::List columns;
  for (const auto& [name, value] : share.outputs) {
    StateTree::List row;
    for (const int64_t size : value.sizes().slice(1)) row.push_back(size);
    columns.push_back(StateTree::map(
        {{"name", name}, {"dtype", static_cast<int64_t>(value.scalar_type())}, {"row", std::move(row)}}));
  }
  StateTree::List texts;
  for (const auto& [name, values] : share.texts) texts.push_back(name);
  return StateTree::map({{"samples", share.samples},
                         {"in_turns", share.in_turns},
                         {"columns", std::move(columns)},
                         {"texts", std::move(texts)}});
}

std::vector<Column> columns_of(const StateTree& looks) {
  std::vector<Column> columns;
  for (const StateTree& item : looks.at("columns").as_list()) {
    Column column{item.at("name").as_string(), static_cast<at::ScalarType>(item.at("dtype").as_int()), {}};
    for (const StateTree& size : item.at("row").as_list()) column.row.push_back(size.as_int());
    columns.push_back(std::move(column));
  }
  return columns;
}

std::vector<std::string> texts_of(const StateTree& looks) {
  std::vector<std::string> names;
  for (const StateTree& name : looks.at("texts").as_list()) names.push_back(name.as_string());
  return names;
}

std::string text_of(const std::vector<Column>& columns) {
  std::vector<std::string> texts;
  for (const Column& column : columns)
    texts.push_back(
        cat("'", escape_controls(column.name), "' (", c10::toString(column.dtype), " ", shape_text(column.row), ")"));
  return texts.empty() ? "nothing" : join(texts);
}

int64_t row_bytes(const Column& column) {
  auto bytes = static_cast<int64_t>(c10::elementSize(column.dtype));
  for (const int64_t size : column.row) bytes *= size;
  return bytes;
}

// As bytes, since backends cannot send every dtype.
Tensor bytes_of(const Tensor& rows) {
  return at::from_blob(rows.data_ptr(), {static_cast<int64_t>(rows.nbytes())}, at::kByte);
}

int64_t ceil_div(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

}  // namespace

std::vector<MergedPredictions> MergedPredictions::of(Collectives& collectives,
                                                     const std::vector<PredictedShare>& shares) {
  StateTree::List own;
  for (const PredictedShare& share : shares) own.push_back(looks_of(share));
  std::vector<StateTree> ranks;
  for (const std::string& text : collectives.gather_text(pack_state(own))) ranks.push_back(unpack_state(text));
  std::vector<MergedPredictions> loaders;
  for (size_t l = 0; l < shares.size(); ++l) {
    MergedPredictions merged(collectives, shares[l]);
    std::optional<size_t> first;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].as_list().size() != shares.size())
        throw Error(cat("[trainer.predict] every rank must have the same loaders; rank ", r, " has ",
                        ranks[r].as_list().size(), ", this rank has ", shares.size(), "."));
      const StateTree& rank = ranks[r].as_list()[l];
      const int64_t samples = rank.at("samples").as_int();
      merged.rows_of_rank_.push_back(samples);
      merged.rows_ += samples;
      merged.in_turns_ = merged.in_turns_ && rank.at("in_turns").as_bool();
      if (samples == 0) continue;  // so it has no outputs
      const std::vector<Column> columns = columns_of(rank);
      if (!first) {
        first = r;
        merged.columns_ = columns;
        merged.texts_ = texts_of(rank);
      } else if (columns != merged.columns_) {
        throw Error(cat("[trainer.predict] every rank must return the same outputs; rank ", r, " has ",
                        text_of(columns), " while rank ", *first, " has ", text_of(merged.columns_), "."));
      } else if (const auto texts = texts_of(rank); texts != merged.texts_) {
        throw Error(cat("[trainer.predict] every rank must have the same texts in its batches; rank ", r, " has ",
                        texts.empty() ? "none" : escape_controls(join(texts)), " while rank ", *first, " has ",
                        merged.texts_.empty() ? "none" : escape_controls(join(merged.texts_)), "."));
      }
    }
    const auto world_size = static_cast<int64_t>(ranks.size());
    for (int64_t r = 0; r < world_size; ++r)
      merged.in_turns_ =
          merged.in_turns_ && merged.rows_of_rank_[static_cast<size_t>(r)] == ceil_div(merged.rows_ - r, world_size);
    loaders.push_back(std::move(merged));
  }
  return loaders;
}

int64_t MergedPredictions::rows_in(int64_t bytes) const {
  int64_t row = 0;
  for (const Column& column : columns_) row += row_bytes(column);
  return std::clamp<int64_t>(row == 0 ? kMostRows : bytes / row, 1, kMostRows);
}

Tensor MergedPredictions::read(size_t index, int64_t first, int64_t count) const {
  const int64_t world_size = collectives_->world_size(), rank = collectives_->rank();
  const auto own = [&](int64_t begin, int64_t rows) {
    return (own_->outputs.begin() + static_cast<std::ptrdiff_t>(index))->second.narrow(0, begin, rows);
  };
  if (world_size == 1) return own(first, count);
  const Column& column = columns_[index];
  const auto rows_like = [&](int64_t rows) {
    std::vector<int64_t> sizes = column.row;
    sizes.insert(sizes.begin(), rows);
    return at::empty(sizes, column.dtype);
  };
  Tensor block = rank == 0 ? rows_like(count) : Tensor();
  for (int64_t r = 0; r < world_size; ++r) {
    const auto [begin, end, place] = part_of(r, first, count);
    if (begin == end || row_bytes(column) == 0) continue;
    Tensor part = rank == r ? own(begin, end - begin) : rows_like(end - begin);
    Tensor sent;
    if (r != 0) {
      sent = collectives_->broadcast(bytes_of(part), r);
      part = at::from_blob(sent.data_ptr(), part.sizes(), at::TensorOptions(column.dtype));
    }
    if (rank != 0) continue;
    (in_turns_ ? block.slice(0, place, std::nullopt, world_size) : block.narrow(0, place, end - begin)).copy_(part);
  }
  return block;
}

MergedPredictions::Part MergedPredictions::part_of(int64_t rank, int64_t first, int64_t count) const {
  if (in_turns_) {
    const int64_t world_size = collectives_->world_size(), begin = ceil_div(first - rank, world_size);
    return {begin, ceil_div(first + count - rank, world_size), rank + begin * world_size - first};
  }
  int64_t before = 0;  // rows of the ranks before this one
  for (int64_t r = 0; r < rank; ++r) before += rows_of_rank_[static_cast<size_t>(r)];
  const int64_t rows = rows_of_rank_[static_cast<size_t>(rank)];
  const int64_t begin = std::clamp<int64_t>(first - before, 0, rows);
  return {begin, std::clamp<int64_t>(first + count - before, 0, rows), before + begin - first};
}

std::vector<std::string> MergedPredictions::read_texts(size_t index, int64_t first, int64_t count) const {
  const int64_t world_size = collectives_->world_size(), rank = collectives_->rank();
  const Part own = part_of(rank, first, count);
  std::vector<std::string> texts;
  if (own.begin < own.end) {
    const auto begin = own_->texts.at(index).second.begin();
    texts.assign(begin + own.begin, begin + own.end);
  }
  if (world_size == 1) return texts;
  const std::vector<std::string> parts =
      collectives_->gather_text(pack_state(StateTree::List(texts.begin(), texts.end())));
  if (rank != 0) return {};
  texts.assign(static_cast<size_t>(count), {});
  for (int64_t r = 0; r < world_size; ++r) {
    auto place = static_cast<size_t>(part_of(r, first, count).place);
    const StateTree sent = unpack_state(parts[static_cast<size_t>(r)]);
    for (const StateTree& text : sent.as_list()) {
      texts.at(place) = text.as_string();
      place += in_turns_ ? static_cast<size_t>(world_size) : 1;
    }
  }
  return texts;
}

}  // namespace fulgur::detail
