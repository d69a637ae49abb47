#include "fulgur/core/system/process_limits.h"

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "support/temporary_folder.h"

namespace process_limits_test {

using fulgur::process_limits;
using fulgur::ProcessLimits;
namespace fs = std::filesystem;

namespace {

/// The root of a file system with control groups.
struct Root : fulgur::test::TemporaryFolder {
  explicit Root(const std::string& group) { put("proc/self/cgroup", group); }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((path() / name).parent_path());
    fulgur::test::write_text(path() / name, text);
  }
  ProcessLimits read() const { return process_limits(path()); }
};

}  // namespace

TEST_CASE("without control groups there are no limits") {
  const fulgur::test::TemporaryFolder empty;
  CHECK_FALSE(process_limits(empty.path()).memory_bytes);
  CHECK_FALSE(process_limits(empty.path()).cpus);
}

TEST_CASE("cgroup v2: the least limit of the group and those above it counts") {
  const Root root("0::/slice/job\n");
  root.put("sys/fs/cgroup/slice/memory.max", "2147483648\n");
  root.put("sys/fs/cgroup/slice/job/memory.max", "max\n");
  root.put("sys/fs/cgroup/slice/job/cpu.max", "150000 100000\n");
  root.put("sys/fs/cgroup/slice/cpu.max", "max 100000\n");
  const ProcessLimits limits = root.read();
  REQUIRE(limits.memory_bytes);
  CHECK(*limits.memory_bytes == int64_t{1} << 31);
  REQUIRE(limits.cpus);
  CHECK(*limits.cpus == 1.5);
  root.put("sys/fs/cgroup/slice/job/memory.max", "1073741824\n");
  CHECK(root.read().memory_bytes == int64_t{1} << 30);
}

TEST_CASE("cgroup v2 in a container: the group's path is the host's, and the limits are at the top") {
  const Root root("0::/../../docker/0123\n");
  root.put("sys/fs/cgroup/memory.max", "536870912\n");
  CHECK(root.read().memory_bytes == int64_t{1} << 29);
}

TEST_CASE("cgroup v1: memory and CPU time have their own hierarchies") {
  const Root root("5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\nbroken\n");
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const ProcessLimits limits = root.read();
  CHECK(limits.memory_bytes == int64_t{1} << 30);
  CHECK(limits.cpus == 0.5);
}

TEST_CASE("text that is no number is no limit") {
  const Root root("0::/job\n");
  root.put("sys/fs/cgroup/job/memory.max", "12 apples\n");
  root.put("sys/fs/cgroup/job/cpu.max", "0 0\n");
  const ProcessLimits limits = root.read();
  CHECK_FALSE(limits.memory_bytes);
  CHECK_FALSE(limits.cpus);
}

}  // namespace process_limits_test
