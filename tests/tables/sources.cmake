set(TEST_SOURCES
  array_data_module_test.cpp
  cell_text_test.cpp
  csv_file_test.cpp
  series_data_module_test.cpp
  table_data_module_test.cpp
  table_stream_test.cpp)
