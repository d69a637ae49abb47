set(TEST_SOURCES
  batch_norm_test.cpp
  norm_layers_test.cpp
  checkpoint_test.cpp
  gradcheck_test.cpp
  sync_batch_norm_test.cpp
  sync_norm_test.cpp
  thread_collectives_test.cpp)
