set(TEST_SOURCES
  data_loader_test.cpp
  data_modules_test.cpp
  idx_test.cpp
  mnist_test.cpp
  samplers_test.cpp
  subset_dataset_test.cpp
  tensor_dataset_test.cpp)
