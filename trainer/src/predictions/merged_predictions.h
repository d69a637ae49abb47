#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "predictions/predicted_share.h"

namespace fulgur::detail {

/// The predictions of all ranks for one loader, as rank 0 reads them: in blocks of rows, which the ranks send. No rank
/// holds more than its share and one block, and no shared disk is needed.
class MergedPredictions {
 public:
  struct Column {
    std::string name;
    at::ScalarType dtype;
    std::vector<int64_t> row;  ///< the shape of a row
    bool operator==(const Column&) const = default;
  };

  /// One per loader; all ranks must call it. They exchange the layout of their shares, and throw the same Error on all
  /// ranks if their outputs differ. Keeps references to both arguments.
  static std::vector<MergedPredictions> of(Collectives& collectives, const std::vector<PredictedShare>& shares);

  const std::vector<Column>& columns() const { return columns_; }
  int64_t rows() const { return rows_; }
  /// Number of rows of all columns that make up about `bytes` bytes; at least one.
  int64_t rows_in(int64_t bytes) const;
  /// Rows of a column from `first` on, on rank 0; an undefined tensor on the others. All ranks must call it. In the
  /// order of the data set if ranks read samples in turns; else rank by rank.
  Tensor read(size_t column, int64_t first, int64_t count) const;
  /// Names of the texts that come with the rows.
  const std::vector<std::string>& texts() const { return texts_; }
  /// The same as `read` for texts; empty on the other ranks.
  std::vector<std::string> read_texts(size_t index, int64_t first, int64_t count) const;

 private:
  MergedPredictions(Collectives& collectives, const PredictedShare& own) : collectives_(&collectives), own_(&own) {}

  /// The rows of a block of `count` rows from `first` on that rank `rank` has: [begin, end) among its own, and the
  /// place of the first of them in the block.
  struct Part {
    int64_t begin, end, place;
  };
  Part part_of(int64_t rank, int64_t first, int64_t count) const;

  Collectives* collectives_;
  const PredictedShare* own_;
  std::vector<std::string> texts_;
  std::vector<Column> columns_;
  std::vector<int64_t> rows_of_rank_;
  int64_t rows_ = 0;
  bool in_turns_ = true;
};

}  // namespace fulgur::detail
