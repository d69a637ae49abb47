list(APPEND TEST_SOURCES
  config/config_components.cpp
  config/config_interpolation_test.cpp
  config/config_links_test.cpp
  config/config_merge_test.cpp
  config/config_schema_test.cpp
  config/config_typed_test.cpp
  config/config_yaml_test.cpp
  config/workflows_test.cpp)
