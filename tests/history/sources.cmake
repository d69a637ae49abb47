set(TEST_SOURCES
  comparison_test.cpp
  curve_test.cpp
  row_reader_test.cpp
  runs_test.cpp)
