list(APPEND TEST_SOURCES
  devices_test.cpp
  enabled.cpp)
