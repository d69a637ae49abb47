#include "child_start.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace fulgur::test {

namespace {

void redirect(const std::string& path, int target) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, target);
  ::close(file);
}

}  // namespace

void apply(const ChildStart& start) {
  redirect(start.err, STDERR_FILENO);
  if (start.out.empty()) {
    ::close(STDOUT_FILENO);
  } else if (start.out == "|") {
    int ends[2];
    if (::pipe(ends) == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
    }
  } else {
    redirect(start.out, STDOUT_FILENO);
  }
  if (!start.folder.empty() && ::chdir(start.folder.c_str()) != 0) ::_exit(127);
  if (start.file_size_kb > 0) {
    const rlim_t bytes = static_cast<rlim_t>(start.file_size_kb) << 10;
    const rlimit size{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &size);
  }
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void write_child_start(const std::filesystem::path& file, const ChildStart& start) {
  std::ofstream stream(file, std::ios::binary);
  const auto add = [&](const std::string& text) { stream << text << '\0'; };
  for (const std::string& text : {start.out, start.err, start.folder}) add(text);
  add(std::to_string(start.file_size_kb));
  add(std::to_string(start.argv.size()));
  for (const std::string& word : start.argv) add(word);
  for (const std::string& variable : start.environment) add(variable);
}

ChildStart read_child_start(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const auto next = [&] {
    std::string text;
    std::getline(stream, text, '\0');
    return text;
  };
  ChildStart start;
  start.out = next();
  start.err = next();
  start.folder = next();
  start.file_size_kb = std::stoll(next());
  start.argv.resize(std::stoull(next()));
  for (std::string& word : start.argv) word = next();
  for (std::string variable = next(); !variable.empty(); variable = next()) start.environment.push_back(variable);
  return start;
}

}  // namespace fulgur::test
