#pragma once

#include <span>
#include <string_view>

namespace fulgur::cli {

/// A file of the project that `new` makes.
struct TemplateFile {
  std::string_view path;  ///< relative to the project
  std::string_view text;  ///< with `template_project` in place of the project's name
};

/// The files of examples/template_project, which the build embeds (embed_template.cmake): a program that is moved or
/// installed without data files has them, and so has a user's program that links fulgur::main.
std::span<const TemplateFile> project_template();

}  // namespace fulgur::cli
