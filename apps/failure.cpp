#include "failure.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include "fulgur/core/options/problem_excerpts.h"
#include "fulgur/core/text/text.h"
#include "terminal.h"

namespace fulgur::cli {

Failure current_failure() {
  try {
    throw;
  } catch (const LaunchFailure& error) {
    return {error.what(), error.code(), error.console()};
  } catch (const BadConfig& error) {
    const auto columns = stderr_columns();
    return {error.what(), error.code(), columns ? problem_excerpts(error, *columns) : std::string()};
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

void print_error(std::string_view process, std::string_view message) {
  std::string block = process.empty() ? "error: " : cat("[", process, "] error: ");
  for (size_t begin = 0; begin <= message.size();) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    block += escape_controls(message.substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  std::fwrite(block.data(), 1, block.size(), stderr);
}

}  // namespace fulgur::cli
