// A component in a static library that nothing refers to (docs/custom_components.md).
#include <fulgur/core/contracts/callback.h>

namespace {

struct InAStaticLibrary : fulgur::Callback {
  void on_train_start(fulgur::RunContext& run) override { run.print("from a static library"); }
};

FULGUR_REGISTER(fulgur::Callback, InAStaticLibrary, "Prints a line.");

}  // namespace
