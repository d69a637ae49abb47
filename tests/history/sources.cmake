set(TEST_SOURCES
  chart_test.cpp
  comparison_test.cpp
  curve_test.cpp
  report_page_test.cpp
  row_reader_test.cpp
  runs_test.cpp)
