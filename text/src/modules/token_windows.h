#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/text/token_files.h"

namespace fulgur::detail {

inline constexpr int64_t kIgnoredTarget = -100;

/// Tokens [begin, end) of a folder.
struct TokenSpan {
  std::shared_ptr<const TokenFiles> files;
  int64_t begin = 0, end = 0;
  /// Windows of `block` tokens side by side: each token but the last one is an input once.
  int64_t packed_windows(int64_t block) const { return end - begin < 2 ? 0 : (end - begin - 2) / block + 1; }
  /// Places where a window of `block` tokens and the token after it can start.
  int64_t random_starts(int64_t block) const { return end - begin < block + 1 ? 0 : end - begin - block; }
};

/// Windows over spans: `input` and `target`, (N, block) int64.
class TokenWindows final : public Dataset {
 public:
  struct How {
    int64_t block = 1;
    bool random = false;               ///< windows start anywhere, instead of side by side
    bool cross_documents = true;       ///< false: needs checked documents
    std::vector<double> weights = {};  ///< of the spans; empty: windows are taken in order, or drawn by their number
    int64_t draws = 0;                 ///< windows of an epoch that are drawn; 0: all in order
  };
  TokenWindows(std::vector<TokenSpan> spans, How how);

  int64_t size() const override { return how_.draws > 0 ? how_.draws : all_.back(); }
  Batch prototype() const override;
  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext& context) const override;

 private:
  struct Place {
    const TokenSpan* span;
    int64_t begin;  // in the file
  };
  Place place_of(int64_t index, const SampleContext& context) const;
  void fill(const Place& place, int64_t* input, int64_t* target) const;
  std::vector<TokenSpan> spans_;
  How how_;
  std::vector<int64_t> all_;      // windows of the spans up to and with each one
  std::vector<double> weighted_;  // likewise their weights
};

}  // namespace fulgur::detail
