set(TEST_SOURCES config.cpp corpus_test.cpp idx.cpp images.cpp pytorch.cpp run_log.cpp safetensors_header.cpp sweep.cpp)
