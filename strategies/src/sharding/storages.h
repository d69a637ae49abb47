#pragma once

#include <c10/core/Storage.h>

#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// A storage of the size and device of `like` without memory: an access to it throws an error with this message.
c10::Storage unreadable_storage(const c10::Storage& like, std::string message);

/// Makes a tensor read other memory, with its sizes, strides and offset as they are. Views of it keep the old memory.
void set_storage(const Tensor& tensor, const c10::Storage& storage);

}  // namespace fulgur::detail
