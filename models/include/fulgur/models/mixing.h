#pragma once

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// A batch in which each sample is mixed with the sample before it (the first one with the last).
struct MixedBatch {
  Tensor input;         ///< of the same shape as before
  Tensor labels;        ///< of the samples themselves
  Tensor other_labels;  ///< of the samples that were mixed in
  Tensor share;         ///< 0-dimensional float32: the share of the samples themselves, in [0, 1]
};

/// MixUp (Zhang et al. 2018, arXiv:1710.09412): `share * x + (1 - share) * other`, with one share for the batch, drawn
/// from Beta(alpha, alpha). `input` (N, …) is floating-point. All numbers are drawn by the generator of the input's
/// device, so the host does not wait, and a captured step draws new ones. Throws a DataError for integers.
FULGUR_API MixedBatch mix_up(const Tensor& input, const Tensor& labels, double alpha);

/// CutMix (Yun et al. 2019, arXiv:1905.04899): a rectangle of the other image replaces that of each image, at the same
/// place in all of them. Its area is 1 - share of the image, with the share drawn from Beta(alpha, alpha); parts
/// outside of the image are cut off, and the returned share is that of the pixels which remain, as in torchvision.
/// `images` (N, C, H, W). Throws a DataError for another number of dimensions.
FULGUR_API MixedBatch cut_mix(const Tensor& images, const Tensor& labels, double alpha);

/// One of the two for the whole batch, each with a probability of 1/2, if both alphas are above 0; one of them if only
/// that alpha is; otherwise the batch itself, with share 1.
FULGUR_API MixedBatch mix(const Tensor& input, const Tensor& labels, double mixup_alpha, double cutmix_alpha);

}  // namespace fulgur
