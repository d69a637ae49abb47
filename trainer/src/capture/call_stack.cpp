#include "capture/call_stack.h"

#include <c10/util/Type.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>

namespace fulgur::detail {
namespace {

// The functions of one file that its dynamic symbol table does not have.
class SymbolTable {
 public:
  explicit SymbolTable(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    Elf64_Ehdr header{};
    if (!read(file, 0, &header, sizeof(header)) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
      return;
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    if (!read(file, header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr))) return;
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
      symbols_.resize(section.sh_size / sizeof(Elf64_Sym));
      names_.resize(sections[section.sh_link].sh_size);
      if (!read(file, section.sh_offset, symbols_.data(), symbols_.size() * sizeof(Elf64_Sym)) ||
          !read(file, sections[section.sh_link].sh_offset, names_.data(), names_.size()))
        symbols_.clear();
    }
  }

  /// Empty if no function has the address.
  std::string name_at(uint64_t address) const {
    for (const Elf64_Sym& symbol : symbols_)
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && address >= symbol.st_value &&
          address - symbol.st_value < symbol.st_size && symbol.st_name < names_.size())
        return names_.c_str() + symbol.st_name;
    return "";
  }

 private:
  static bool read(std::ifstream& file, uint64_t offset, void* to, size_t size) {
    file.seekg(static_cast<std::streamoff>(offset));
    return file.read(static_cast<char*>(to), static_cast<std::streamsize>(size)).good();
  }

  std::vector<Elf64_Sym> symbols_;
  std::string names_;
};

// What LibTorch does not export is of no interest, and its tables are large.
bool is_of_libtorch(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libtorch") || name.starts_with("libc10");
}

}  // namespace

std::vector<std::string> functions_on_stack() {
  std::array<void*, 256> addresses{};
  const int count = ::backtrace(addresses.data(), static_cast<int>(addresses.size()));
  std::map<std::string, SymbolTable> tables;
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    // The call lies before the address to which it returns.
    const uint64_t address = reinterpret_cast<uint64_t>(addresses.at(static_cast<size_t>(i))) - 1;
    Dl_info info{};
    link_map* object = nullptr;
    if (::dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0)
      continue;
    std::string name = info.dli_sname ? info.dli_sname : "";
    if (name.empty() && object) {
      const std::string path = object->l_name && *object->l_name ? object->l_name : "/proc/self/exe";
      if (is_of_libtorch(path)) continue;
      name = tables.try_emplace(path, path).first->second.name_at(address - object->l_addr);
    }
    if (!name.empty()) names.push_back(c10::demangle(name.c_str()));
  }
  return names;
}

}  // namespace fulgur::detail
