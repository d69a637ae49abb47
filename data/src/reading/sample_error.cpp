#include "reading/sample_error.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <cctype>
#include <typeinfo>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// Rethrow a user-derived class unchanged: its message cannot be changed without losing its type.
template <class E>
void rethrow_as(const Error& error, const std::string& where) {
  if (typeid(error) == typeid(E)) throw E(cat(error.what(), " (", where, ")"));
}

}  // namespace

std::string list_samples(c10::ArrayRef<int64_t> indices) {
  std::vector<std::string> names;
  for (size_t i = 0; i < indices.size() && i < 8; ++i) names.push_back(std::to_string(indices[i]));
  if (indices.size() > 8) names.push_back(cat("… (", static_cast<int64_t>(indices.size()), " samples)"));
  return cat(indices.size() == 1 ? "sample " : "samples ", join(names));
}

bool names_number(std::string_view message, int64_t number) {
  const std::string digits = std::to_string(number);
  const auto is_digit = [&](size_t at) {
    return at < message.size() && std::isdigit(static_cast<unsigned char>(message[at])) != 0;
  };
  for (const char* word : {"index ", "sample ", "Index ", "Sample "}) {
    const std::string wanted = word + digits;
    for (size_t at = message.find(wanted); at != std::string_view::npos; at = message.find(wanted, at + 1))
      if (!is_digit(at + wanted.size())) return true;
  }
  return false;
}

bool names_one_of(const std::exception_ptr& error, c10::ArrayRef<int64_t> indices) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    for (const int64_t index : indices)
      if (names_number(e.what(), index)) return true;
  } catch (...) {
  }
  return false;
}

void throw_in(const std::exception_ptr& error, std::string_view loader, const std::string& where) {
  const auto text = [&](std::string_view what) {
    return cat("[data.", loader, "] ", where, " could not be read; ", what,
               ". Check the data and the dataset that reads it.");
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    rethrow_as<DataError>(e, where);
    rethrow_as<ConfigError>(e, where);
    rethrow_as<CheckpointError>(e, where);
    rethrow_as<DistributedError>(e, where);
    rethrow_as<NonFiniteError>(e, where);
    if (typeid(e) == typeid(Error)) throw Error(cat(e.what(), " (", where, ")"), e.code());
    throw;
  } catch (const c10::Error& e) {
    // what() has a stack trace of many lines.
    std::throw_with_nested(DataError(text(cat("c10::Error: ", e.what_without_backtrace()))));
  } catch (const std::exception& e) {
    std::throw_with_nested(DataError(text(cat(c10::demangle(typeid(e).name()), ": ", e.what()))));
  } catch (...) {
    std::throw_with_nested(DataError(text("an exception was thrown that is not a std::exception")));
  }
}

void throw_naming(const std::exception_ptr& error, c10::ArrayRef<int64_t> indices, const std::string& set_name) {
  if (names_one_of(error, indices)) std::rethrow_exception(error);
  const std::string which = indices.size() == 1 ? list_samples(indices) : cat("one of the ", list_samples(indices));
  throw_in(error, "DataLoader", set_name.empty() ? which : cat(which, " of the ", set_name, " set"));
}

}  // namespace fulgur
