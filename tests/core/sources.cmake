set(TEST_SOURCES autocast_test.cpp batch_test.cpp clip_test.cpp interval_trigger_test.cpp let_go_test.cpp memory_stats_test.cpp module_test.cpp state_tree_test.cpp text_table_test.cpp)
