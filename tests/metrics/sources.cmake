set(TEST_SOURCES
  aggregation_test.cpp
  metric_values_test.cpp
  text_metrics_test.cpp)
