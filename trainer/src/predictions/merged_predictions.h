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

 private:
  MergedPredictions(Collectives& collectives, const Outputs& own) : collectives_(&collectives), own_(&own) {}

  Collectives* collectives_;
  const Outputs* own_;
  std::vector<Column> columns_;
  std::vector<int64_t> rows_of_rank_;
  int64_t rows_ = 0;
  bool in_turns_ = true;
};

}  // namespace fulgur::detail
