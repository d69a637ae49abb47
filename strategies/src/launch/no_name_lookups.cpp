#include "launch/no_name_lookups.h"

#include <netinet/in.h>
#include <resolv.h>

#include <utility>

namespace fulgur::detail {
namespace {

// For this thread only: glibc keeps the resolver's settings per thread.
int set_attempts(int attempts) {
  if ((_res.options & RES_INIT) == 0) ::res_init();
  return std::exchange(_res.retry, attempts);
}

}  // namespace

NoNameLookups::NoNameLookups() : attempts_(set_attempts(0)) {}
NoNameLookups::~NoNameLookups() { set_attempts(attempts_); }

}  // namespace fulgur::detail
