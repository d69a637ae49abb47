#include "trainer/second_device.h"

TEST_CASE("on virtual:1, a device without an index is virtual:1 until the run ends") {
  fulgur::test::check_second_device("virtual", at::kPrivateUse1);
}
