list(APPEND TEST_SOURCES config_node_test.cpp log_test.cpp options_test.cpp registry_test.cpp text_test.cpp)
