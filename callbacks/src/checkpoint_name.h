#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// Fills a filename template such as `{epoch}-{val_loss:.2f}`: with `insert_names`, a field becomes `val_loss=0.31`. A
/// metric that is missing counts as 0. Characters that have no place in a file name become `_`. Throws a ConfigError
/// for a template that cannot be read.
std::string fill_checkpoint_name(std::string_view pattern, bool insert_names,
                                 const std::function<std::optional<double>(std::string_view)>& value_of);

}  // namespace fulgur::detail
