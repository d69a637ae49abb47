// A plug-in with a verb that has the name of a built-in one.
#include <fulgur/core/contracts/verb.h>

namespace {

class AnotherList final : public fulgur::Verb {
 public:
  fulgur::ExitCode run() override { return fulgur::ExitCode::ok; }
};
[[maybe_unused]] const bool registered_another_list =
    fulgur::Registry<fulgur::Verb>::add<AnotherList>("list", "Would hide the built-in verb.");

}  // namespace
