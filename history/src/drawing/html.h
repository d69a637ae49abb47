#pragma once

#include <string>
#include <string_view>

namespace fulgur::history {

/// `text` for HTML and SVG, in elements and in quoted attributes. Bytes that are not UTF-8 and control characters are
/// replaced.
std::string html_escaped(std::string_view text);

/// The style sheet of the page.
extern const char* const kPageStyle;
/// The script that shows values under the pointer. The page is complete without it.
extern const char* const kPageScript;

/// `data:` URL of a file's bytes.
std::string data_url(std::string_view type, std::string_view bytes);

}  // namespace fulgur::history
