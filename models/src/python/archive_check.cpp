#include "python/archive_check.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "fulgur/checkpoint/zip_reader.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

// LibTorch's parser calls itself for each bracket; programs that it wrote have some dozens.
constexpr int64_t kDeepestCode = 500;

int64_t depth_of_brackets(std::string_view code) {
  int64_t depth = 0, deepest = 0;
  for (const char letter : code) {
    if (letter == '(' || letter == '[' || letter == '{') deepest = std::max(deepest, ++depth);
    if (letter == ')' || letter == ']' || letter == '}') depth = std::max<int64_t>(0, depth - 1);
  }
  return deepest;
}

// Blanks at the beginning of a line nest blocks.
int64_t depth_of_blocks(std::string_view code) {
  int64_t deepest = 0;
  for (size_t begin = 0; begin < code.size();) {
    const size_t end = std::min(code.find('\n', begin), code.size());
    const size_t text = std::min(code.find_first_not_of(" \t", begin), end);
    deepest = std::max(deepest, static_cast<int64_t>(text - begin));
    begin = end + 1;
  }
  return deepest;
}

// All entries of such an archive are below one folder.
std::string_view without_folder(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

}  // namespace

ArchiveKind check_archive(const fs::path& path, const char* component) {
  const std::string shown = escape_controls(path.string());
  const auto refuse = [&](const auto&... what) -> ConfigError {
    return ConfigError(cat("[models.", component, "] ", what...));
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw refuse("model.init_args.path must name a file; there is no ", shown, ".");
  if (!fs::is_regular_file(status)) throw refuse("model.init_args.path must name a file; ", shown, " is not one.");
  bool has_constants = false, has_code = false, has_pickle = false, has_program = false, has_library = false;
  try {
    const ZipReader archive(path, {.component = component, .writer = "PyTorch", .may_be_compressed = true});
    std::string bytes;
    for (const auto& [name, entry] : archive.entries()) {
      const std::string_view inner = without_folder(name);
      bytes.resize(static_cast<size_t>(entry.bytes));
      archive.read(name, entry, bytes.data());
      const bool is_code = inner.starts_with("code/") && inner.ends_with(".py");
      if (is_code && std::max(depth_of_brackets(bytes), depth_of_blocks(bytes)) > kDeepestCode)
        throw refuse(shown, " has code that is nested more than ", kDeepestCode,
                     " deep, which no program of PyTorch is.");
      has_code = has_code || is_code;
      has_constants = has_constants || inner == "constants.pkl";
      has_pickle = has_pickle || inner == "data.pkl";
      has_program = has_program || inner.starts_with("models/") || inner == "serialized_exported_program.json";
      has_library = has_library || (inner.find("aotinductor/") != std::string_view::npos && inner.ends_with(".so"));
    }
  } catch (const CheckpointError& damage) {
    throw refuse("the file of the model cannot be read. ", damage.what());
  }
  if (has_library) return ArchiveKind::compiled_package;
  if (has_program) return ArchiveKind::export_program;
  if (has_constants && has_pickle && has_code) return ArchiveKind::script;
  return has_pickle ? ArchiveKind::state_dict : ArchiveKind::other;
}

std::string describe_archive(ArchiveKind kind, const fs::path& path) {
  switch (kind) {
    case ArchiveKind::script:
      return "; it is a TorchScript file. Use the model TorchScriptModule.";
    case ArchiveKind::state_dict:
      return "; it is a file of torch.save, which has weights but no program. Export the model with "
             "torch.jit.script(model).save(\"net.pt\"), or train one of our models with `pretrained`.";
    case ArchiveKind::export_program:
      return cat(
          "; it is a file of torch.export.save, which only Python can run. Compile it there: "
          "torch._inductor.aoti_compile_and_package(torch.export.load(\"",
          escape_controls(path.string()),
          "\"), package_path=\"compiled.pt2\"), and use the model TorchExportModule with the path compiled.pt2.");
    case ArchiveKind::compiled_package:
      return "; it is a package of AOTInductor, which cannot be trained. Use the model TorchExportModule to predict.";
    case ArchiveKind::other:
      break;
  }
  return "; it is another archive. Export the model with torch.jit.script(model).save(\"net.pt\").";
}

}  // namespace fulgur::detail
