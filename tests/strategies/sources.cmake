set(TEST_SOURCES
  cluster_environment_test.cpp
  cluster_shards_test.cpp
  hostlist_test.cpp)
