list(APPEND TEST_SOURCES
  averaging_test.cpp
  current_device_test.cpp
  device_paths_test.cpp
  device_transforms_test.cpp
  devices_test.cpp
  dp_test.cpp
  enabled.cpp
  placed_models_test.cpp
  placed_strategy_test.cpp)
