set(TEST_SOURCES command_line_test.cpp cuda_absent_test.cpp exchange_verbs_test.cpp kill_test.cpp presets_test.cpp process.cpp resume_config_test.cpp signals_test.cpp verbs_test.cpp)
