set(TEST_SOURCES checkpoint_name_test.cpp)
