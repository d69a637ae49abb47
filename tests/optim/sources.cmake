set(TEST_SOURCES lbfgs_test.cpp optimizer_test.cpp schedules_test.cpp torch_optimizer_test.cpp)
