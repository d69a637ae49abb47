#include "fulgur/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "durable_file.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "safetensors_header.h"

namespace fulgur {
namespace {

using detail::SafetensorsHeader;

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kBool, "BOOL"}, {at::kByte, "U8"},   {at::kChar, "I8"},    {at::kShort, "I16"},  {at::kUInt16, "U16"},
    {at::kHalf, "F16"},  {at::kBFloat16, "BF16"}, {at::kInt, "I32"}, {at::kUInt32, "U32"}, {at::kFloat, "F32"},
    {at::kLong, "I64"},  {at::kUInt64, "U64"}, {at::kDouble, "F64"}};

const char* name_of_dtype(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& [type, text] : kDtypes)
    if (type == dtype) return text;
  throw CheckpointError(cat("[checkpoint.safetensors] '", tensor, "' has dtype ", c10::toString(dtype), ", which the format cannot hold."));
}

at::ScalarType dtype_of_name(const std::string& name) {
  for (const auto& [type, text] : kDtypes)
    if (name == text) return type;
  throw CheckpointError(cat("[checkpoint.safetensors] unknown dtype '", name, "'."));
}

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path) : path_(path) {
    fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd_ < 0) detail::throw_errno("opening", path, errno);
    struct stat info {};
    if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd_);
      throw CheckpointError(cat("[checkpoint.safetensors] ", path, " is no regular file."));
    }
    size_ = static_cast<uint64_t>(info.st_size);
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  uint64_t size() const { return size_; }
  void read(void* data, uint64_t bytes) {
    auto* next = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::read(fd_, next, bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) detail::throw_errno("reading", path_, errno);
      if (got == 0) throw CheckpointError(cat("[checkpoint.safetensors] ", path_, " became shorter while it was read."));
      next += got;
      bytes -= static_cast<uint64_t>(got);
    }
  }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// What a file that is no safetensors looks like, for the message.
std::string looks_like(std::string_view start) {
  if (start.starts_with("version https://git-lfs")) return " It is a Git LFS pointer: run `git lfs pull`.";
  if (start.starts_with("PK")) return " It looks like a zip archive (a .pt file?).";
  if (start.starts_with("\x80\x02") || start.starts_with("\x80\x04")) return " It looks like a Python pickle.";
  if (start.starts_with("\x89PNG")) return " It looks like a PNG image.";
  return {};
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t offset = 0;
  std::vector<Tensor> on_cpu;
  for (const auto& [name, tensor] : tensors) {
    Tensor plain = tensor.detach().to(at::kCPU).contiguous();
    const auto bytes = static_cast<uint64_t>(plain.nbytes());
    header.entries.push_back({name, name_of_dtype(plain.scalar_type(), name), plain.sizes().vec(), offset, offset + bytes});
    offset += bytes;
    on_cpu.push_back(std::move(plain));
  }
  const std::string text = detail::make_safetensors_header(header);
  detail::DurableFile file(path);
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  file.write(length, sizeof length);
  file.write(text);
  for (const Tensor& tensor : on_cpu) file.write(tensor.const_data_ptr(), tensor.nbytes());
  file.commit();
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  InputFile file(path);
  try {
    if (file.size() < 8) throw CheckpointError(cat("truncated: have ", file.size(), " of at least 8 bytes."));
    unsigned char length[8];
    file.read(length, sizeof length);
    uint64_t header_bytes = 0;
    for (int i = 0; i < 8; ++i) header_bytes |= static_cast<uint64_t>(length[i]) << (8 * i);
    const std::string hint = looks_like(std::string_view(reinterpret_cast<const char*>(length), 8));
    if (header_bytes > detail::kMaxHeaderBytes)
      throw CheckpointError(cat("the header claims ", header_bytes, " bytes; at most ", detail::kMaxHeaderBytes, " are allowed.", hint));
    if (header_bytes > file.size() - 8)
      throw CheckpointError(cat("truncated: have ", file.size(), " of at least ", header_bytes + 8, " bytes.", hint));
    std::string text(header_bytes, '\0');
    file.read(text.data(), text.size());
    const SafetensorsHeader header = detail::parse_safetensors_header(text, file.size() - 8 - header_bytes);
    SafetensorsFile out;
    out.metadata = header.metadata;
    for (const auto& entry : header.entries) {
      Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(dtype_of_name(entry.dtype)));
      file.read(tensor.mutable_data_ptr(), entry.end - entry.begin);
      out.tensors.emplace_back(entry.name, std::move(tensor));
    }
    return out;
  } catch (const CheckpointError& error) {
    throw CheckpointError(cat(path, ": ", error.what()));
  }
}

}  // namespace fulgur
