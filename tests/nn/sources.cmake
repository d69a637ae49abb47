set(TEST_SOURCES
  batch_norm_test.cpp)
