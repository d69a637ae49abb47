#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <set>

#include "checkpoint/fault_calls.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace save_faults_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

CheckpointContent content(int64_t step) {
  CheckpointContent c;
  c.module = {{"w", at::full({300}, step)}, {"large", at::full({1 << 14}, step)}};
  c.optimizers = StateTree::List{StateTree::map({{"momentum", at::full({7}, step + 1)}})};
  c.state["progress"] = StateTree::map({{"global_step", step}, {"epoch", 0}});
  c.state["rng"] = at::full({5}, step + 2);
  return c;
}

fs::path name(const fs::path& folder, int64_t step) { return folder / cat("step=", step, ".ckpt"); }

// The step of a checkpoint that is whole and holds what content(step) made; -1 of any other.
int64_t whole_step(const fs::path& path) {
  try {
    const CheckpointContent c = read_checkpoint(path);
    const int64_t step = c.state.at("progress").at("global_step").as_int();
    const bool same = c.module.at(0).second.equal(at::full({300}, step)) &&
                      c.module.at(1).second.equal(at::full({1 << 14}, step)) &&
                      c.optimizers.as_list().at(0).at("momentum").tensor().equal(at::full({7}, step + 1)) &&
                      c.state.at("rng").tensor().equal(at::full({5}, step + 2));
    return same ? step : -1;
  } catch (const CheckpointError&) {
    return -1;
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

const std::set<std::string> kOld{"step=1.ckpt", "last.ckpt"};

// A folder with one checkpoint and the link to it, made once and copied.
class OldCheckpoint {
 public:
  OldCheckpoint() {
    write_checkpoint(name(made_.path(), 1), content(1));
    link_checkpoint(made_ / "last.ckpt", name(made_.path(), 1));
  }
  void copy_to(const fs::path& folder) const {
    fs::remove_all(folder);
    fs::copy(made_.path(), folder, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

 private:
  TemporaryFolder made_;
};

// What a run does at a save: the new one, the link, the old one away.
void save_and_prune(const fs::path& folder) {
  const fs::path path = write_checkpoint(name(folder, 2), content(2));
  link_checkpoint(folder / "last.ckpt", path);
  remove_checkpoint(name(folder, 1));
}

}  // namespace

TEST_CASE(
    "F2 a process killed before, in or after any system call of a save leaves the old or the new checkpoint, whole") {
  const OldCheckpoint old;
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  int calls = 0;
  {
    old.copy_to(folder);
    const FaultCalls count([&](std::string_view, const auto& call) { return ++calls, call(); });
    save_and_prune(folder);
  }
  REQUIRE(whole_step(folder / "last.ckpt") == 2);
  enum class When { before, inside, after };
  int killed = 0, survived = 0;
  std::set<int64_t> left;
  for (int target = 1; target <= calls; ++target)
    for (const When when : {When::before, When::inside, When::after}) {
      old.copy_to(folder);
      const int status = in_child([&] {
        int number = 0;
        FaultCalls kill_at([&](std::string_view, const auto& call) {
          const bool now = ++number == target;
          if (now && when == When::before) raise(SIGKILL);
          const long result = call();
          if (now) raise(SIGKILL);
          return result;
        });
        // Half of a write was done.
        if (when == When::inside) kill_at.shorten = [&](size_t bytes) { return number == target ? bytes / 2 : bytes; };
        save_and_prune(folder);
        return 0;
      });
      REQUIRE(WIFSIGNALED(status));
      ++killed;
      const int64_t last = whole_step(folder / "last.ckpt");
      bool good = last == 1 || last == 2;
      // Nothing that looks like a checkpoint is less than one, and the newest of them is the old or the new.
      const auto listed = list_checkpoints(folder);
      for (const auto& item : listed) good = good && !item.problem && whole_step(item.path) == item.global_step;
      good = good && !listed.empty() && listed.front().global_step >= last;
      remove_leftovers(folder);
      for (const std::string& entry : names_in(folder)) good = good && !entry.starts_with(".");
      left.insert(last);
      if (good) ++survived;
    }
  CHECK(survived == killed);
  CHECK(killed == 3 * calls);
  CHECK(calls > 40);
  CHECK(left == std::set<int64_t>{1, 2});
}

TEST_CASE("F6 any system call that fails is an error with path and reason; the old checkpoint stays and nothing else") {
  const OldCheckpoint old;
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  std::map<std::string, int> failed;
  for (int target = 1;; ++target) {
    old.copy_to(folder);
    int number = 0;
    std::string failing, error;
    {
      const FaultCalls fail_at([&](std::string_view call_name, const auto& call) -> long {
        if (++number != target) return call();
        failing = call_name;
        if (failing == "close") call();  // a close that fails has closed
        errno = EIO;
        return -1;
      });
      try {
        write_checkpoint(name(folder, 2), content(2));
      } catch (const CheckpointError& e) {
        error = e.what();
      }
    }
    if (failing.empty()) break;
    INFO(failing << " number " << target << ": " << error);
    if (error.empty()) {
      // Closing a folder that was only synced.
      CHECK(failing == "close");
      CHECK(whole_step(name(folder, 2)) == 2);
      continue;
    }
    ++failed[failing];
    CHECK_THAT(error, ContainsSubstring("Input/output error") && ContainsSubstring(folder.string()));
    CHECK(names_in(folder) == kOld);
    CHECK(whole_step(folder / "last.ckpt") == 1);
  }
  // Five files and two folders.
  CHECK(failed["fsync"] == 7);
  CHECK(failed["open"] == 7);
  CHECK(failed["close"] == 5);
  CHECK(failed["write"] >= 10);
  CHECK(failed["fallocate"] == 1);
  CHECK(failed["mkdir"] == 1);
  CHECK(failed["rename"] == 1);
}

TEST_CASE("F6 interrupted calls and short writes end in a right checkpoint") {
  TemporaryFolder folder;
  bool interrupt = false;
  int interrupted = 0;
  FaultCalls calls([&](std::string_view call_name, const auto& call) -> long {
    if (call_name == "write" || call_name == "fsync") {
      interrupt = !interrupt;
      if (interrupt) {
        ++interrupted;
        errno = EINTR;
        return -1;
      }
    }
    return call();
  });
  calls.shorten = [](size_t bytes) { return std::min<size_t>(bytes, 7); };
  const fs::path path = write_checkpoint(name(folder.path(), 3), content(3));
  CHECK(whole_step(path) == 3);
  CHECK(interrupted > 500);
}

TEST_CASE("F6 a file system that does not support preallocation or early write-back still works") {
  TemporaryFolder folder;
  CheckpointContent c = content(3);
  c.module.emplace_back("larger", at::full({3 << 20}, 3));
  for (const int reason : {EOPNOTSUPP, ENOSYS, EINVAL}) {
    int refused = 0;
    const FaultCalls calls([&](std::string_view call_name, const auto& call) -> long {
      if (call_name != "fallocate" && call_name != "start_writing_back") return call();
      ++refused;
      errno = reason;
      return -1;
    });
    CHECK(whole_step(write_checkpoint(name(folder.path(), 3), c)) == 3);
    CHECK(refused == 4);
  }
}

TEST_CASE("F6 a link that cannot be replaced stays as it was") {
  const OldCheckpoint old;
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  for (const char* failing : {"symlink", "rename"}) {
    old.copy_to(folder);
    const FaultCalls calls([&](std::string_view call_name, const auto& call) -> long {
      if (call_name != failing) return call();
      errno = EDQUOT;
      return -1;
    });
    CHECK_THROWS_WITH(link_checkpoint(folder / "last.ckpt", folder / "other.ckpt"),
                      ContainsSubstring("Disk quota exceeded"));
    CHECK(names_in(folder) == kOld);
    CHECK(fs::read_symlink(folder / "last.ckpt") == "step=1.ckpt");
  }
}

TEST_CASE("F5 a full device is reported with the bytes needed and free; the old checkpoint stays and nothing else") {
  const OldCheckpoint old;
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  for (const int nth : {1, 3, 12}) {
    old.copy_to(folder);
    int writes = 0;
    const FaultCalls calls([&](std::string_view call_name, const auto& call) -> long {
      if (call_name != "write" || ++writes < nth) return call();
      errno = ENOSPC;
      return -1;
    });
    CHECK_THROWS_WITH(write_checkpoint(name(folder, 2), content(2)),
                      ContainsSubstring("No space left on device") && ContainsSubstring(folder.string()) &&
                          ContainsSubstring("The checkpoint needs 13") && ContainsSubstring(" bytes were free") &&
                          ContainsSubstring("Free disk space"));
    CHECK(names_in(folder) == kOld);
    CHECK(whole_step(folder / "last.ckpt") == 1);
  }
}

TEST_CASE("F5 the limit on the size of files is an error, not the end of the process") {
  const OldCheckpoint old;
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  old.copy_to(folder);
  const int status = in_child([&] {
    const rlimit limit{1000, 1000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    try {
      write_checkpoint(name(folder, 2), content(2));
    } catch (const CheckpointError& error) {
      const std::string text = error.what();
      return text.find("File too large") != std::string::npos && text.find("The checkpoint needs") != std::string::npos
                 ? 42
                 : 2;
    }
    return 3;
  });
  CHECK(WEXITSTATUS(status) == 42);
  CHECK(names_in(folder) == kOld);
  CHECK(whole_step(folder / "last.ckpt") == 1);
}

TEST_CASE("F5 a file system of 1 MiB that is full leaves the old checkpoint") {
  TemporaryFolder temporary;
  // In a mount namespace of the child's own, which goes with it.
  const int status = in_child([&] {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (mount("tmpfs", temporary.path().c_str(), "tmpfs", 0, "size=1m") != 0) return 77;
    write_checkpoint(name(temporary.path(), 1), content(1));
    CheckpointContent large = content(2);
    large.module.emplace_back("larger", at::arange(1 << 18));
    std::string text;
    try {
      write_checkpoint(name(temporary.path(), 2), large);
    } catch (const CheckpointError& error) {
      text = error.what();
    }
    for (const char* expected : {"No space left on device", "The checkpoint needs 2", " were free"})
      if (text.find(expected) == std::string::npos) return 1;
    if (names_in(temporary.path()) != std::set<std::string>{"step=1.ckpt"}) return 2;
    if (whole_step(name(temporary.path(), 1)) != 1) return 3;
    // What failed took no room: a small one still goes.
    return whole_step(write_checkpoint(name(temporary.path(), 3), content(3))) == 3 ? 42 : 4;
  });
  if (exited(status, 77)) SKIP("this machine lets no process mount a file system of its own");
  CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("F7 a folder that this user may not write to is an error with path and reason, and nothing changes") {
  TemporaryFolder temporary;
  const fs::path folder = temporary / "checkpoints";
  write_checkpoint(name(folder, 1), content(1));
  fs::permissions(temporary.path(), fs::perms(0755));
  fs::permissions(folder, fs::perms(0555));
  const int status = in_child([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 1;
    const auto denied = [&](const auto& action) {
      try {
        action();
      } catch (const CheckpointError& error) {
        const std::string text = error.what();
        return text.find("Permission denied") != std::string::npos && text.find(folder.string()) != std::string::npos;
      }
      return false;
    };
    const bool all = denied([&] { write_checkpoint(name(folder, 2), content(2)); }) &&
                     denied([&] { link_checkpoint(folder / "last.ckpt", name(folder, 1)); }) &&
                     denied([&] { remove_checkpoint(name(folder, 1)); }) &&
                     denied([&] { write_checkpoint(folder / "deeper/a.ckpt", content(2)); });
    return all && whole_step(name(folder, 1)) == 1 ? 42 : 2;
  });
  CHECK(WEXITSTATUS(status) == 42);
  CHECK(names_in(folder) == std::set<std::string>{"step=1.ckpt"});
}

TEST_CASE("F7 a folder replaced by a file, or removed during the save, is an error with path and reason") {
  TemporaryFolder folder;
  write_text(folder / "file", "");
  CHECK_THROWS_WITH(write_checkpoint(folder / "file/a.ckpt", content(1)),
                    ContainsSubstring("Not a directory") && ContainsSubstring((folder / "file").string()));
  int writes = 0;
  const FaultCalls calls([&](std::string_view call_name, const auto& call) {
    if (call_name == "write" && ++writes == 5) fs::remove_all(folder / "gone");
    return call();
  });
  CHECK_THROWS_WITH(write_checkpoint(folder / "gone/a.ckpt", content(1)),
                    ContainsSubstring("No such file or directory") && ContainsSubstring((folder / "gone").string()));
  CHECK(names_in(folder.path()) == std::set<std::string>{"file"});
  // A folder that was removed between saves is made again.
  CHECK(whole_step(write_checkpoint(folder / "gone/a.ckpt", content(4))) == 4);
}

TEST_CASE("what cannot be written as data leaves nothing") {
  TemporaryFolder folder;
  CheckpointContent bad = content(1);
  bad.state["text"] = "\xff\xfe";
  CHECK_THROWS_WITH(write_checkpoint(folder / "b.ckpt", bad), ContainsSubstring("'text' is not UTF-8"));
  bad = content(1);
  bad.module.emplace_back("w", at::arange(2));
  CHECK_THROWS_WITH(write_checkpoint(folder / "b.ckpt", bad), ContainsSubstring("two tensors have the name 'w'"));
  CHECK(names_in(folder.path()).empty());
}

}  // namespace save_faults_test
