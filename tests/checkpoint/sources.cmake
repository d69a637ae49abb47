set(TEST_SOURCES
  checkpoint_folder_test.cpp
  corruption_test.cpp
  module_state_test.cpp
  safetensors_test.cpp
  state_json_test.cpp)
