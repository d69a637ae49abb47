#include <vector>

#include "formats/pytorch_archive.h"
#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

void check(const detail::PickledStateDict& content) {
  for (const auto& tensor : content.tensors) {
    const auto& storage = content.storages[tensor.storage];
    expect(tensor.dtype != nullptr && tensor.sizes.size() == tensor.strides.size() && tensor.offset >= 0,
           "a tensor is whole");
    int64_t last = tensor.offset;
    bool empty = false;
    for (size_t i = 0; i < tensor.sizes.size(); ++i) {
      expect(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0, "sizes and strides are none below 0");
      empty |= tensor.sizes[i] == 0;
      last += tensor.sizes[i] > 0 ? (tensor.sizes[i] - 1) * tensor.strides[i] : 0;
    }
    expect(empty || static_cast<uint64_t>(last) < storage.bytes / tensor.dtype->bytes, "a tensor lies in its storage");
  }
}

}  // namespace

void pytorch_pickle(std::string_view input) {
  detail::PickledStateDict content;
  try {
    content = detail::read_state_dict_pickle(input);
  } catch (const CheckpointError&) {
    return;
  }
  check(content);
  const detail::PickledStateDict again = detail::read_state_dict_pickle(detail::write_state_dict_pickle(content));
  expect(again.tensors.size() == content.tensors.size(), "the tensors come back");
  for (size_t i = 0; i < again.tensors.size(); ++i)
    expect(again.tensors[i].name == content.tensors[i].name && again.tensors[i].dtype == content.tensors[i].dtype &&
               again.tensors[i].sizes == content.tensors[i].sizes &&
               again.tensors[i].strides == content.tensors[i].strides &&
               again.tensors[i].offset == content.tensors[i].offset,
           "a tensor comes back");
}

void pytorch_zip(std::string_view input) {
  try {
    const detail::PytorchArchive archive{detail::ZipReader(input)};
    check(archive.content());
    uint64_t bytes = 0;
    std::vector<bool> read(archive.content().storages.size());
    for (const auto& tensor : archive.content().tensors) {
      if (read[tensor.storage]) continue;
      read[tensor.storage] = true;
      std::vector<char> data(archive.content().storages[tensor.storage].bytes);
      bytes += data.size();
      expect(bytes <= input.size(), "no more is read than there is");
      archive.read_storage(tensor.storage, data.data());
    }
  } catch (const CheckpointError&) {
  }
}

}  // namespace fulgur::fuzz
