#pragma once

#include "fulgur/core/contracts/dataset.h"

namespace fulgur {

/// Windows over tokens [begin, end) of a text: `input` and `target`, int64.
class TextWindows final : public Dataset {
 public:
  struct Cut {
    int64_t begin, end;  ///< with at least block + 1 tokens between them
    int64_t block;
    int64_t stride = 1;  ///< between windows
    int64_t random = 0;  ///< above 0: the number of windows that start anywhere, used instead of `stride`
  };
  /// `tokens` (count) uint8 or int32, shared.
  TextWindows(Tensor tokens, const Cut& cut);
  int64_t size() const override;
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;

 private:
  int64_t begin_of(int64_t index, const SampleContext& context) const;
  Tensor tokens_;
  Cut cut_;
};

}  // namespace fulgur
