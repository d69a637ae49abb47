set(TEST_SOURCES
  curve_test.cpp
  row_reader_test.cpp
  runs_test.cpp)
