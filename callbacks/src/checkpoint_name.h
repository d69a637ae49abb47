#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// Fills a filename template such as `{epoch}-{val_loss:.2f}`: with `insert_names`, a field becomes `val_loss=0.31`. A
/// missing metric counts as 0. Characters not allowed in a file name become `_`. Throws a ConfigError for an invalid
/// template.
std::string fill_checkpoint_name(std::string_view pattern, bool insert_names,
                                 const std::function<std::optional<double>(std::string_view)>& value_of);

/// Throws a ConfigError if a checkpoint in the run folder would have the name of a link there, `last` or `best`.
void refuse_link_name(std::string_view callback, std::string_view filename);

}  // namespace fulgur::detail
