#include "files/tf_record.h"

#include <catch2/catch_test_macros.hpp>

namespace tf_record_test {

using namespace fulgur;

TEST_CASE("crc-32c has its known values") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43);
}

TEST_CASE("the crc-32c of a text continues from that of its beginning") {
  const std::string text = "123456789";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    CHECK(crc32c(text.substr(cut), crc32c(text.substr(0, cut))) == 0xE3069283);
}

TEST_CASE("a record is framed as TensorFlow frames it") {
  CHECK(masked_crc(0) == 0xA282EAD8);
  CHECK(masked_crc(0xE3069283) == 0xC78AB0E5);
  // Every event file of TensorFlow begins with these bytes: the first event is 24 bytes long.
  const std::string record = tf_record(std::string(24, 'x'));
  CHECK(record.substr(0, 12) == std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  CHECK(record.size() == 24 + 16);
  CHECK(tf_record("123456789").substr(12) == "123456789\xe5\xb0\x8a\xc7");
}

}  // namespace tf_record_test
