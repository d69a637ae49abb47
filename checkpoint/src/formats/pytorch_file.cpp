#include "fulgur/checkpoint/pytorch_file.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "formats/pytorch_archive.h"
#include "formats/zip_writer.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/input_file.h"

namespace fulgur {
namespace {

// In the order of kTorchDtypes.
constexpr at::ScalarType kScalarTypes[] = {
    at::kBool,   at::kByte,     at::kChar,   at::kShort,         at::kInt,          at::kLong,
    at::kHalf,   at::kBFloat16, at::kFloat,  at::kDouble,        at::kComplexFloat, at::kComplexDouble,
    at::kUInt16, at::kUInt32,   at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
static_assert(std::size(kScalarTypes) == detail::kTorchDtypes.size());

at::ScalarType scalar_type(const detail::TorchDtype* dtype) {
  return kScalarTypes[static_cast<size_t>(dtype - detail::kTorchDtypes.data())];
}

const detail::TorchDtype* torch_dtype(const std::string& name, const Tensor& tensor) {
  for (size_t i = 0; i < std::size(kScalarTypes); ++i)
    if (kScalarTypes[i] == tensor.scalar_type()) return &detail::kTorchDtypes[i];
  throw CheckpointError(cat("[checkpoint.pytorch] '", escape_controls(name), "' has dtype ",
                            c10::toString(tensor.scalar_type()), ", which cannot be written."));
}

std::string advice(const std::filesystem::path& path) {
  const std::string start = detail::InputFile(path).looks_like();
  if (start.find("pickle") != std::string::npos)
    return " It looks like a Python pickle. Such files come from torch before 1.6, or from torch.save with "
           "`_use_new_zipfile_serialization=False`. Load it in Python and save it again.";
  return start;
}

Tensor make_tensor(const detail::PickledTensor& pickled, std::vector<Tensor>& storages,
                   const detail::PytorchArchive& archive) {
  const at::ScalarType dtype = scalar_type(pickled.dtype);
  Tensor& bytes = storages[pickled.storage];
  if (!bytes.defined()) {
    bytes = at::empty({static_cast<int64_t>(archive.content().storages[pickled.storage].bytes)},
                      at::TensorOptions().dtype(at::kByte));
    archive.read_storage(pickled.storage, bytes.mutable_data_ptr());
  }
  Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  tensor.set_(bytes.storage(), pickled.offset, pickled.sizes, pickled.strides);
  if (pickled.conjugated) tensor = tensor.conj().resolve_conj();
  return pickled.negated ? tensor.neg() : tensor;
}

Tensor plain(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided)
    throw CheckpointError(cat("[checkpoint.pytorch] '", escape_controls(name), "' is ",
                              tensor.defined() ? "a sparse tensor" : "undefined", ", which cannot be written."));
  at::NoGradGuard no_grad;
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

}  // namespace

PytorchFile read_pytorch_file(const std::filesystem::path& path) {
  try {
    char start[4] = {};
    {
      detail::InputFile file(path);
      if (file.size() >= sizeof start) file.read(start, sizeof start);
    }
    if (!detail::looks_like_zip({start, sizeof start}))
      throw CheckpointError(cat("[checkpoint.pytorch] it is not a file of torch.save.", advice(path)));
    const detail::PytorchArchive archive{detail::ZipReader(path)};
    PytorchFile out;
    out.left_out = archive.content().left_out;
    std::vector<Tensor> storages(archive.content().storages.size());
    for (const detail::PickledTensor& tensor : archive.content().tensors)
      out.tensors.emplace_back(tensor.name, make_tensor(tensor, storages, archive));
    return out;
  } catch (const CheckpointError& error) {
    throw CheckpointError(cat(escape_controls(path.string()), ": ", error.what()));
  }
}

void write_pytorch_file(const std::filesystem::path& path, const NamedTensors& tensors,
                        const std::map<std::string, std::string>& aliases) {
  detail::PickledStateDict content;
  std::vector<Tensor> on_host;
  std::map<std::string, size_t> index;
  for (const auto& [name, tensor] : tensors) {
    on_host.push_back(plain(name, tensor));
    const Tensor& kept = on_host.back();
    const detail::TorchDtype* dtype = torch_dtype(name, kept);
    if (!index.emplace(name, content.tensors.size()).second)
      throw CheckpointError(cat("[checkpoint.pytorch] two tensors have the name '", escape_controls(name), "'."));
    content.storages.push_back(
        {std::to_string(content.storages.size()), dtype->storage.empty() ? nullptr : dtype, kept.nbytes()});
    content.tensors.push_back({name, dtype, content.storages.size() - 1, 0, kept.sizes().vec(), kept.strides().vec()});
  }
  for (const auto& [alias, name] : aliases) {
    const auto found = index.find(name);
    if (found == index.end() || index.contains(alias))
      throw CheckpointError(cat("[checkpoint.pytorch] '", escape_controls(alias), "' cannot be an alias of '",
                                escape_controls(name), "'."));
    content.tensors.push_back(content.tensors[found->second]);
    content.tensors.back().name = alias;
  }
  const std::string pickle = write_state_dict_pickle(content);
  detail::ZipWriter zip(path);
  zip.add("archive/data.pkl", pickle.data(), pickle.size());
  zip.add("archive/byteorder", "little", 6);
  for (size_t i = 0; i < on_host.size(); ++i)
    zip.add(cat("archive/data/", content.storages[i].key), on_host[i].const_data_ptr(), on_host[i].nbytes());
  zip.add("archive/version", "3\n", 2);
  zip.commit();
}

}  // namespace fulgur
