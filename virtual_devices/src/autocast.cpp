#include "registrations.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace fulgur::virtual_devices {

void register_autocast() {
  // For operations that are not in the lists.
  static auto& rest =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFallthrough());
  using namespace at;  // the lists use its type names unqualified
  static auto& m = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__,
                                       __LINE__);  // kept until the process ends
#define FULGUR_IN_HALF(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(FULGUR_IN_HALF)
#undef FULGUR_IN_HALF
#define FULGUR_IN_FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(FULGUR_IN_FULL)
#undef FULGUR_IN_FULL
#define FULGUR_WITH_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULGUR_WITH_DTYPE)
#undef FULGUR_WITH_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define FULGUR_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(FULGUR_WIDEST)
#undef FULGUR_WIDEST
}

}  // namespace fulgur::virtual_devices
