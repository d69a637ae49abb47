#pragma once

#include <csetjmp>

namespace fulgur::detail {

/// What the C libraries' error handlers need to leave a library: they jump back into `without_errors`.
struct ErrorJump {
  std::jmp_buf target;
  char text[256] = "";
};

/// Calls `work`; false if a handler jumped out of it. `work` must have no variables with destructors and must not
/// throw, since a jump skips both. Never inlined: the caller's variables would be clobbered.
template <class Work>
[[gnu::noinline]] bool without_errors(ErrorJump& jump, const Work& work) {
  if (setjmp(jump.target) != 0) return false;
  work();
  return true;
}

}  // namespace fulgur::detail
