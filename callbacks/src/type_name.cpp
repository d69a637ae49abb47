#include "type_name.h"

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::string short_type_name(std::string_view name) {
  // The namespace ends at the last `::` outside template arguments and `(anonymous namespace)`.
  int inside = 0;
  size_t start = 0, arguments = std::string_view::npos;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<' && inside == 0) arguments = i;
    if (c == '<' || c == '(') ++inside;
    if ((c == '>' || c == ')') && inside > 0) --inside;
    if (c == ':' && inside == 0 && i + 1 < name.size() && name[i + 1] == ':') {
      start = i + 2;
      arguments = std::string_view::npos;
    }
  }
  std::string_view own =
      name.substr(start, arguments == std::string_view::npos ? std::string_view::npos : arguments - start);
  if (own.size() > 4 && own.ends_with("Impl")) own.remove_suffix(4);
  std::string text(own);
  if (arguments == std::string_view::npos || !name.ends_with('>')) return text;
  const std::string_view list = name.substr(arguments + 1, name.size() - arguments - 2);
  text += '<';
  size_t begin = 0;
  inside = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && (list[i] == '<' || list[i] == '(')) ++inside;
    if (i < list.size() && (list[i] == '>' || list[i] == ')')) --inside;
    if (i < list.size() && (list[i] != ',' || inside > 0)) continue;
    std::string_view argument = list.substr(begin, i - begin);
    while (!argument.empty() && argument.front() == ' ') argument.remove_prefix(1);
    while (!argument.empty() && argument.back() == ' ') argument.remove_suffix(1);
    text += cat(begin > 0 ? ", " : "", short_type_name(argument));
    begin = i + 1;
  }
  return text + '>';
}

}  // namespace fulgur::detail
