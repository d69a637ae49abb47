set(TEST_SOURCES config.cpp corpus_test.cpp csv_table.cpp idx.cpp npy_header.cpp images.cpp pytorch.cpp run_log.cpp safetensors_header.cpp shard_index.cpp sweep.cpp tokenizer.cpp)
