set(TEST_SOURCES
  csv_format_test.cpp
  csv_logger_test.cpp
  jsonl_logger_test.cpp
  memory_logger_test.cpp
  run_name_test.cpp
  tensorboard_logger_test.cpp
  tf_record_test.cpp)
