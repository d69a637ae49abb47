#include "trainer/loops/second_device.h"

namespace current_device_test {

TEST_CASE("on virtual:1, a device without an index is virtual:1 until the run ends") {
  fulgur::test::check_second_device("virtual", at::kPrivateUse1);
}

}  // namespace current_device_test
