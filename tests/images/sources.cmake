set(TEST_SOURCES
  batch_transforms_test.cpp
  resampling_test.cpp
  transform_values_test.cpp
  transforms_guide_test.cpp
  transforms_test.cpp)
