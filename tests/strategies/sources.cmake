set(TEST_SOURCES
  ddp_baseline_test.cpp)
