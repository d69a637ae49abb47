#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace fulgur {

/// What `work` throws; nullptr for nothing.
template <class Work>
std::exception_ptr exception_of(const Work& work) {
  try {
    work();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// `sample 3` or `samples 3, 4, 5`, at most eight and the total number.
std::string list_samples(c10::ArrayRef<int64_t> indices);

/// True if `message` names the number as a whole: `index 13`, `(sample 13)`, but not 130.
bool names_number(std::string_view message, int64_t number);

/// True if the message of the exception names one of the indices.
bool names_one_of(const std::exception_ptr& error, c10::ArrayRef<int64_t> indices);

/// Rethrows `error` with `where` it happened (`batch 3 of the train set`). Fulgur's own errors keep their type; others
/// become a DataError of `[data.loader]`, with the original nested (`std::rethrow_if_nested`).
[[noreturn]] void throw_in(const std::exception_ptr& error, std::string_view loader, const std::string& where);

/// The same with the samples as location, unless the message names one of them already. `set_name` may be empty.
[[noreturn]] void throw_naming(const std::exception_ptr& error, c10::ArrayRef<int64_t> indices,
                               const std::string& set_name);

}  // namespace fulgur
