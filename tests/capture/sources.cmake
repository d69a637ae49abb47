set(TEST_SOURCES
  captured_program_test.cpp
  host_writes_test.cpp
  networks_test.cpp
  operation_watch_test.cpp
  random_steps_test.cpp
  refusals_test.cpp
  step_capture_test.cpp)
