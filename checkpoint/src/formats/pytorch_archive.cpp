#include "formats/pytorch_archive.h"

#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

[[noreturn]] void bad_archive(const std::string& what) { throw CheckpointError(cat("[checkpoint.pytorch] ", what)); }

// The single folder that contains all entries of a torch.save archive.
std::string root_of(const ZipReader& zip) {
  if (zip.entries().empty()) bad_archive("the archive is empty.");
  const std::string& first = zip.entries().begin()->first;
  const std::string root = first.substr(0, first.find('/') + 1);
  for (const auto& [name, entry] : zip.entries())
    if (root.empty() || !name.starts_with(root))
      bad_archive(cat("it is not a file of torch.save: its entries must be in one folder; '",
                      escape_controls(name.substr(0, 200)), "' is not."));
  return root;
}

std::string read_text(const ZipReader& zip, const std::string& name, uint64_t limit) {
  const auto found = zip.entries().find(name);
  if (found == zip.entries().end()) return {};
  if (found->second.bytes > limit)
    bad_archive(
        cat("'", escape_controls(name), "' has ", found->second.bytes, " bytes; at most ", limit, " are allowed."));
  std::string text(found->second.bytes, '\0');
  zip.read(name, found->second, text.data());
  return text;
}

}  // namespace

PytorchArchive::PytorchArchive(ZipReader zip) : zip_(std::move(zip)), root_(root_of(zip_)) {
  const auto& entries = zip_.entries();
  if (entries.contains(root_ + "constants.pkl"))
    bad_archive(
        "it is a TorchScript archive, which is a program. Save its weights: torch.save(module.state_dict(), FILE).");
  if (!entries.contains(root_ + "data.pkl"))
    bad_archive(cat("it is not a file of torch.save: '", escape_controls(root_), "data.pkl' is missing."));
  if (const std::string order = read_text(zip_, root_ + "byteorder", 64); !order.empty() && order != "little")
    bad_archive(cat("its numbers must be little-endian; the file says '", escape_controls(order), "'."));
  content_ = read_state_dict_pickle(read_text(zip_, root_ + "data.pkl", kMaxPickleBytes));
  std::vector<bool> checked(content_.storages.size());
  for (const PickledTensor& tensor : content_.tensors) {
    if (checked[tensor.storage]) continue;
    checked[tensor.storage] = true;
    const PickledStorage& storage = content_.storages[tensor.storage];
    const auto found = entries.find(name_of(storage));
    if (found == entries.end())
      bad_archive(cat("the storage of '", escape_controls(tensor.name), "' is missing: there is no '",
                      escape_controls(name_of(storage)), "'."));
    if (found->second.bytes != storage.bytes)
      bad_archive(cat("the storage of '", escape_controls(tensor.name), "' must have ", storage.bytes, " bytes; '",
                      escape_controls(name_of(storage)), "' has ", found->second.bytes, "."));
  }
}

std::string PytorchArchive::name_of(const PickledStorage& storage) const { return cat(root_, "data/", storage.key); }

void PytorchArchive::read_storage(size_t storage, void* data) const {
  const std::string name = name_of(content_.storages[storage]);
  zip_.read(name, zip_.entries().at(name), data);
}

bool looks_like_zip(std::string_view start) {
  return start.starts_with("PK\x03\x04") || start.starts_with("PK\x05\x06");
}

}  // namespace fulgur::detail
