#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "fulgur/text/token_files.h"

namespace fulgur::detail {

/// Reads documents in pieces of a few MiB. `cut` returns where a piece may end (0: nowhere); `use` gets the pieces,
/// which are UTF-8, and whether a piece is the last one of its document; it is not called for a document without text,
/// and the last piece of another one may be empty. `advance` gets the bytes that were read. Throws a DataError that
/// names file, and line or byte.
void read_documents(const DocumentFiles& documents, const std::function<size_t(std::string_view)>& cut,
                    const std::function<void(std::string_view, bool)>& use,
                    const std::function<void(int64_t)>& advance);

/// The size of all inputs. Throws a DataError for one that is no regular file or does not exist.
int64_t bytes_of_inputs(const DocumentFiles& documents);

}  // namespace fulgur::detail
