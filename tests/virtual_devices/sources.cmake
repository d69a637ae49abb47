list(APPEND TEST_SOURCES
  devices_test.cpp
  dp_test.cpp
  enabled.cpp)
