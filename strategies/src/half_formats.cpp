#include "half_formats.h"

#include "fulgur/core/accelerator.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {

void check_half_format(const std::string& precision, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) {
    if (dtype == at::kHalf)
      log::warn("strategies.float16_on_cpu", cat("precision ", precision, " on a CPU: float16 is emulated there, a linear layer takes 47 times as long as in float32. "
                                                 "Use bf16-mixed on a CPU"));
    return;
  }
  const Accelerator* accelerator = find_accelerator(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  if (!accelerator) return;
  if (const std::string reason = accelerator->cannot_compute_in(dtype, device.index()); !reason.empty())
    throw ConfigError(cat("[strategies.precision] precision ", precision, " does not run on ", device.str(), ": ", reason, ". Use ",
                          dtype == at::kBFloat16 ? "16-mixed or 32-true" : "32-true", "."));
}

void warn_of_small_scale(const GradScaler& scaler) {
  const float scale = scaler.scale_tensor().item<float>();
  if (scale < 1)
    log::warn("strategies.small_loss_scale", cat("the loss scale has fallen to ", scale, ": the gradients overflow however small the loss is made. Is the learning rate too "
                                                 "high, or does the model give NaN or infinity by itself? trainer.debug: true names where; bf16-mixed needs no scale"));
}

}  // namespace fulgur::detail
