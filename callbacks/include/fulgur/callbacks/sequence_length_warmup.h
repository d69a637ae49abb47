#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/shapes_batches.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/interval.h"

namespace fulgur {

/// What SequenceLengthWarmup does with the part of a sequence that is too long: it is left out, or becomes more rows.
enum class LongSequences { truncate, segment };
constexpr auto enum_names(LongSequences) {
  return std::to_array<EnumName<LongSequences>>(
      {{LongSequences::truncate, "truncate"}, {LongSequences::segment, "segment"}});
}

/// Shortens the sequences of training batches, to a length that grows from `start` to `end` over `duration`. The length
/// depends on the position of the run only, so this callback has no state, and all ranks use the same length.
class FULGUR_API SequenceLengthWarmup final : public Callback, public ShapesBatches {
 public:
  struct FULGUR_API Options {
    int64_t start = 0;
    std::optional<int64_t> end = {};  ///< the length of the sequences
    Interval duration = {};
    int64_t step = 8;
    std::vector<std::string> keys = {};
    int64_t dim = 1;
    LongSequences mode = LongSequences::truncate;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options out of range, and unless `start` and `end` are multiples of `step` in this order.
  explicit SequenceLengthWarmup(Options options);

  /// Throws a ConfigError if the run cannot measure `duration`.
  void on_train_start(RunContext& run) override;
  /// Logs `sequence_length`.
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;

  /// Warns if the warm-up did not end, or if `end` was longer than all sequences, in a run that has a folder.
  void on_train_end(RunContext& run) override;

  /// Throws a ConfigError if the batch has no tensor with a name of `keys` and dimension `dim`, if their lengths
  /// differ, if those of the first batch of a fit are shorter than `start`, and, with `segment`, if it has other
  /// entries with rows, or if no length divides that of the sequences.
  Batch shape_batch(RunContext& run, Batch batch) override;

  /// The length for sequences of `full` elements when a part of the duration (0 to 1, or more) is over.
  int64_t length_at(double part, int64_t full) const;

 private:
  int64_t length_of_sequences(const Batch& batch) const;
  void refuse_long_start(const Batch& batch, int64_t full) const;
  int64_t dividing_length(int64_t wanted, int64_t full) const;
  Batch truncated(Batch batch, int64_t length) const;
  Batch segmented(Batch batch, int64_t length) const;

  Options options_;
  int64_t length_ = 0;    ///< of the batch under way
  int64_t longest_ = 0;   ///< of the sequences of this process
  bool checked_ = false;  ///< whether they are long enough
};

}  // namespace fulgur
