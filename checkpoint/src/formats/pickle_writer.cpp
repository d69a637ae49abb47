#include "formats/safetensors_header.h"
#include "formats/state_dict_pickle.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

void put_bytes(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_integer(std::string& out, uint64_t value) {
  if (value < 256) {
    out += 'K';
    put_bytes(out, value, 1);
  } else if (value <= INT32_MAX) {
    out += 'J';
    put_bytes(out, value, 4);
  } else {
    out += "\x8a\x08";
    put_bytes(out, value, 8);
  }
}

void put_text(std::string& out, std::string_view text) {
  out += 'X';
  put_bytes(out, text.size(), 4);
  out += text;
}

void put_name(std::string& out, std::string_view module, std::string_view name) {
  out += cat("c", module, "\n", name, "\n");
}

void put_sizes(std::string& out, const std::vector<int64_t>& sizes) {
  out += '(';
  for (const int64_t size : sizes) put_integer(out, static_cast<uint64_t>(size));
  out += 't';
}

void put_tensor(std::string& out, const PickledTensor& tensor, const PickledStorage& storage) {
  const bool typed = storage.dtype != nullptr;
  put_name(out, "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out += "((";
  put_text(out, "storage");
  put_name(out, typed ? "torch" : "torch.storage", typed ? storage.dtype->storage : "UntypedStorage");
  put_text(out, storage.key);
  put_text(out, "cpu");
  put_integer(out, typed ? storage.bytes / storage.dtype->bytes : storage.bytes);
  out += "tQ";
  put_integer(out, static_cast<uint64_t>(tensor.offset));
  put_sizes(out, tensor.sizes);
  put_sizes(out, tensor.strides);
  out += '\x89';
  put_name(out, "collections", "OrderedDict");
  out += ")R";
  if (!typed) put_name(out, "torch", tensor.dtype->name);
  out += "tR";
}

}  // namespace

std::string write_state_dict_pickle(const PickledStateDict& content) {
  const auto refuse = [](const std::string& what) { throw CheckpointError("[checkpoint.pytorch] " + what + "."); };
  if (content.tensors.size() > kMaxTensors)
    refuse(cat("a file may hold ", kMaxTensors, " tensors; got ", content.tensors.size()));
  std::string out = "\x80\x02";
  put_name(out, "collections", "OrderedDict");
  out += ")R(";
  for (const PickledTensor& tensor : content.tensors) {
    if (!is_utf8(tensor.name) || tensor.name.size() > kMaxNameBytes)
      refuse(cat("a name must be UTF-8 of at most ", kMaxNameBytes, " bytes; got '",
                 escape_controls(tensor.name.substr(0, 200)), "'"));
    put_text(out, tensor.name);
    put_tensor(out, tensor, content.storages[tensor.storage]);
  }
  out += "u.";
  if (out.size() > kMaxPickleBytes)
    refuse(cat("the names and shapes would have ", out.size(), " bytes; at most ", kMaxPickleBytes, " are allowed"));
  return out;
}

}  // namespace fulgur::detail
