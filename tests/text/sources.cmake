set(TEST_SOURCES
  labelled_text_data_module_test.cpp
  token_files_data_module_test.cpp
  token_files_test.cpp
  tokenizer_json_test.cpp
  tokenizer_values_test.cpp
  train_tokenizer_test.cpp
  words_test.cpp)
