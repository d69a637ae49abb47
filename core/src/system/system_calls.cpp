#include "fulgur/core/system/system_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace fulgur::detail {
namespace {

SystemCalls real_calls;
std::atomic<SystemCalls*> calls_in_use{&real_calls};

}  // namespace

int SystemCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
ssize_t SystemCalls::write(int fd, const void* data, size_t bytes) { return ::write(fd, data, bytes); }
ssize_t SystemCalls::pwrite(int fd, const void* data, size_t bytes, off_t at) { return ::pwrite(fd, data, bytes, at); }
int SystemCalls::fallocate(int fd, off_t bytes) { return ::fallocate(fd, 0, 0, bytes); }
int SystemCalls::start_writing_back(int fd, off_t begin, off_t bytes) {
  return ::sync_file_range(fd, begin, bytes, SYNC_FILE_RANGE_WRITE);
}
int SystemCalls::fsync(int fd) { return ::fsync(fd); }
int SystemCalls::close(int fd) { return ::close(fd); }
int SystemCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int SystemCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int SystemCalls::symlink(const char* target, const char* link) { return ::symlink(target, link); }
int SystemCalls::flock(int fd, int operation) { return ::flock(fd, operation); }

SystemCalls& system_calls() { return *calls_in_use; }

ScopedSystemCalls::ScopedSystemCalls(SystemCalls& calls) : before_(calls_in_use.exchange(&calls)) {}
ScopedSystemCalls::~ScopedSystemCalls() { calls_in_use = before_; }

}  // namespace fulgur::detail
