#pragma once

namespace fulgur::test {

/// Whether the program is optimized and without sanitizers: limits of time and memory apply only then.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr bool kRunsAtFullSpeed = true;
#else
inline constexpr bool kRunsAtFullSpeed = false;
#endif

}  // namespace fulgur::test
