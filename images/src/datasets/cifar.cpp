#include "datasets/cifar.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <optional>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kCifarImageBytes = 3 * kCifarPixels;

[[noreturn]] void refuse_cifar(const std::filesystem::path& file, const std::string& text) {
  throw DataError(cat("[images.read_cifar] ", text, "; file ", escape_controls(file.string()),
                      ". Fetch the binary version of the data set again."));
}

std::string cifar_contents(const std::filesystem::path& file) {
  std::error_code none;
  // Before it is read: the largest of the files, CIFAR-100's train.bin, has 154 MB.
  constexpr uint64_t kMostCifarBytes = uint64_t{1} << 30;
  const uint64_t bytes = std::filesystem::file_size(file, none);
  if (!none && bytes > kMostCifarBytes)
    refuse_cifar(file, cat("a CIFAR file has at most ", kMostCifarBytes, " bytes; got ", bytes));
  std::optional<std::string> text;
  try {
    text = read_regular_file(file);
  } catch (const Error& error) {
    refuse_cifar(file, error.what());
  }
  if (!text) refuse_cifar(file, "the file must exist; it does not");
  return std::move(*text);
}

}  // namespace

CifarImages read_cifar(const std::vector<std::filesystem::path>& files, const CifarFormat& format) {
  const int64_t record = format.label_bytes + kCifarImageBytes;
  std::vector<std::string> contents;
  int64_t count = 0;
  for (const auto& file : files) {
    contents.push_back(cifar_contents(file));
    const auto bytes = static_cast<int64_t>(contents.back().size());
    if (bytes == 0 || bytes % record != 0)
      refuse_cifar(file, cat("the file must have whole records of ", record, " bytes; it has ", bytes, " bytes"));
    count += bytes / record;
  }
  CifarImages all{at::empty({count, 3, 32, 32}, at::kByte), {}};
  all.labels.reserve(static_cast<size_t>(count));
  auto* to = all.images.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& bytes = contents[i];
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(record)) {
      const int64_t label = static_cast<uint8_t>(bytes[at + static_cast<size_t>(format.label_at)]);
      if (label >= format.classes)
        refuse_cifar(files[i], cat("labels must be in [0, ", format.classes, "); got ", label, " in record ",
                                   at / static_cast<size_t>(record)));
      all.labels.push_back(label);
      std::memcpy(to, bytes.data() + at + format.label_bytes, static_cast<size_t>(kCifarImageBytes));
      to += kCifarImageBytes;
    }
  }
  return all;
}

std::vector<std::string> read_cifar_names(const std::filesystem::path& file, int64_t count) {
  std::vector<std::string> names;
  for (std::string& line : split_text(cifar_contents(file), '\n')) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(std::move(line));
  }
  if (static_cast<int64_t>(names.size()) != count)
    refuse_cifar(file, cat("the file must have a line for each of ", count, " classes; it has ", names.size()));
  for (const std::string& name : names)
    if (!is_utf8(name)) refuse_cifar(file, "names of classes must be UTF-8");
  return names;
}

}  // namespace fulgur::detail
