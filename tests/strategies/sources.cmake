set(TEST_SOURCES
  cluster_environment_test.cpp
  cluster_shards_test.cpp
  hostlist_test.cpp
  launcher_nodes_test.cpp
  launcher_signals_test.cpp
  launcher_test.cpp
  real_launchers_test.cpp)
