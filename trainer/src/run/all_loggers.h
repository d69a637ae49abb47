#pragma once

#include <cstddef>
#include <exception>

namespace fulgur::detail {

/// Calls `call` with the indices below `count`. An exception of one logger does not cost the others the entry: the
/// first exception is thrown after the last call.
template <class Call>
void for_all_loggers(size_t count, Call call) {
  std::exception_ptr first;
  for (size_t i = 0; i < count; ++i) {
    try {
      call(i);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace fulgur::detail
