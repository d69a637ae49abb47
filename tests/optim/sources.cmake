set(TEST_SOURCES optimizer_test.cpp schedules_test.cpp)
