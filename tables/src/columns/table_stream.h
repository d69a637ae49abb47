#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "columns/row_encoder.h"
#include "fulgur/core/contracts/dataset.h"
#include "fulgur/data/file_fingerprint.h"

namespace fulgur::tables {

/// The part of row `row` of a table that is streamed, 0 for training, 1 for validation and 2 for test: a function of
/// the options and the row's number only, so that no list of rows is needed. Fractions are those of the expectation.
int part_of_row(const SplitOptions& split, int64_t row);

/// Which rows of a table are streamed, and in which order.
struct StreamPart {
  std::vector<std::filesystem::path> paths;
  int part = -1;            ///< of part_of_row; -1: all rows
  int64_t buffer_rows = 1;  ///< shuffled with each other
  bool shuffle = false;
  std::optional<int64_t> rows = {};  ///< of the part, of all ranks, if they are known
  bool with_index = false;           ///< adds `index` (N) int64, the numbers of the rows in the files
};

/// Rows of a table that are read again in each epoch. The rows of this process are divided into blocks of buffer_rows
/// rows, each of which is shuffled by seed, epoch and its number. The state is the place of the current block in the
/// files and the number of its rows that were returned, so that a resume reads at most one block twice.
class TableStream final : public IterableDataset {
 public:
  TableStream(std::shared_ptr<const RowEncoder> encoder, const SplitOptions& split, char delimiter, StreamPart part);

  void set_share(int64_t rank, int64_t world_size) override;
  std::optional<int64_t> samples() const override;
  void reset(const SampleContext& context) override;
  std::optional<Batch> next(int64_t count, const SampleContext& context) override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  /// What is known before a row is read.
  struct Position {
    RowPlace place;
    int64_t row = 0;          ///< of the files
    int64_t row_of_part = 0;  ///< among the rows of the part, of all ranks
  };
  bool next_row();
  bool read_block();
  Batch empty(int64_t rows) const;

  std::shared_ptr<const RowEncoder> encoder_;
  SplitOptions split_;
  char delimiter_;
  StreamPart part_;
  int64_t rank_ = 0, world_size_ = 1;
  SampleContext context_;
  std::unique_ptr<TableRows> rows_;
  Position position_, block_start_;
  int64_t block_ = -1;  ///< number of the current block
  Batch buffer_;
  std::vector<int64_t> order_;  ///< of the rows in the buffer
  int64_t returned_ = 0;        ///< rows of the block
  detail::FileFingerprints fingerprints_;
  std::string files_;  ///< their fingerprint when the epoch began
};

}  // namespace fulgur::tables
