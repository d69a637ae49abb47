#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recorder.h"

namespace fulgur::detail {

struct ComparedRecording {
  const StorageUses& uses;
  const std::vector<Tensor>& inputs;
  const RawRecording& raw;
};

/// What differs between recordings of two steps, apart from values of tensors; see CapturedProgram::difference.
std::optional<std::string> difference_between(const ComparedRecording& before, const ComparedRecording& now);

}  // namespace fulgur::detail
