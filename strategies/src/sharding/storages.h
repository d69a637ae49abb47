#pragma once

#include <c10/core/Storage.h>

#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// A storage of the size and device of `like` without memory: an access to it throws an error with this message.
c10::Storage unreadable_storage(const c10::Storage& like, std::string message);

/// A storage of the size and device of `like`, without memory until it is filled.
c10::Storage empty_storage(const c10::Storage& like);
/// Gives a storage memory for `bytes`, uninitialised. Tensors that have had the storage read it again.
void fill_storage(const c10::Storage& storage, size_t bytes);
/// Frees the memory.
void clear_storage(const c10::Storage& storage);

/// Makes a tensor read other memory, with its sizes, strides and offset as they are. Views of it keep the old memory.
void set_storage(const Tensor& tensor, const c10::Storage& storage);

}  // namespace fulgur::detail
