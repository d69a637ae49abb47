#pragma once

#include <string>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/seq2seq_parts.h"
#include "fulgur/nn/placed.h"

namespace fulgur {

/// Sequence to sequence (Sutskever et al. 2014): recurrent layers read the source, others generate the target from the
/// final state. The submodules `encoder` and `decoder` may be placed on different devices.
///
/// `batch["source"]` (N, S) and `batch["target"]` (N, T) are tokens, int64 in [0, vocabulary); token 0 is the start
/// token, which is the decoder's first input. In training it is followed by the target, shifted by one token (teacher
/// forcing). The loss is the mean cross entropy per token. Logs `train_loss`; `val_loss`, `val_acc` (fraction of
/// correct tokens, with the target's tokens as input) and `val_exact` (fraction of completely correct sequences, with
/// the model's own most probable tokens as input); `test_loss`, `test_acc`, `test_exact`. Prediction returns `tokens`
/// (N, S) int64, as many as the source has.
class FULGUR_API Seq2Seq : public LightningModule {
 public:
  struct Options {
    int64_t vocabulary = 32;
    int64_t embedding = 32;
    int64_t hidden = 128;
    int64_t layers = 1;
    RecurrentCell cell = RecurrentCell::gru;
    double dropout = 0.0;
    void fields(Fields& f);
  };
  explicit Seq2Seq(const Options& options);

  /// Returns logits (N, T, vocabulary) of each target token, given the previous ones and the source, on the decoder's
  /// device. Throws a DataError for tokens of another shape or dtype and, on the CPU, for one out of range.
  Tensor forward(const Tensor& source, const Tensor& target);
  /// Returns the most probable tokens (N, `length`), decoded greedily, on the decoder's device. `length` is at least 1.
  Tensor decode(const Tensor& source, int64_t length);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  /// The number of tokens in the target.
  std::optional<int64_t> num_tokens(const Batch& batch) const override { return batch["target"].numel(); }

 private:
  Tensor loss_of(const Tensor& logits, const Tensor& target) const;
  void evaluate(const Batch& batch, const std::string& stage);

  Options options_;
  nn::Placed<Seq2SeqEncoder> encoder_;
  nn::Placed<Seq2SeqDecoder> decoder_;
};

}  // namespace fulgur
