list(APPEND TEST_SOURCES
  config_components.cpp
  config_interpolation_test.cpp
  config_links_test.cpp
  config_merge_test.cpp
  config_schema_test.cpp
  config_typed_test.cpp
  config_yaml_test.cpp)
