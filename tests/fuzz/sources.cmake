set(TEST_SOURCES config.cpp corpus_test.cpp idx.cpp pytorch.cpp run_log.cpp safetensors_header.cpp shard_index.cpp sweep.cpp tokenizer.cpp)
