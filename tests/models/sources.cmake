set(TEST_SOURCES
  autoencoder_test.cpp
  classifier_test.cpp
  gpt_test.cpp
  mixing_test.cpp
  seq2seq_test.cpp
  tabular_test.cpp)
