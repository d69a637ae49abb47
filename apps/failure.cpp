#include "failure.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>

namespace fulgur::cli {

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.what(), error.code()};
  } catch (const std::bad_alloc&) {
    return {"[memory] out of memory; make the batch or the model smaller"};
  } catch (const std::exception& error) {
    // LibTorch's errors contain a stack trace, which is not useful here.
    const std::string_view message = error.what();
    const size_t end = std::min(message.find("\nException raised from "), message.find("\nframe #0: "));
    return {std::string(message.substr(0, end))};
  } catch (...) {
    return {"[cli] an exception of unknown type"};
  }
}

}  // namespace fulgur::cli
