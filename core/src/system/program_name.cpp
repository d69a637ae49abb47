#include "fulgur/core/system/program_name.h"

#include <filesystem>

#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string& name() {
  static std::string name = "trainer";
  return name;
}

}  // namespace

const std::string& program_name() { return name(); }

void set_program_name(const std::string& argument) {
  const std::string file = std::filesystem::path(argument).filename().string();
  if (!file.empty() && is_utf8(file)) name() = escape_controls(file);
}

}  // namespace fulgur
