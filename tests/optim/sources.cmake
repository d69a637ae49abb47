set(TEST_SOURCES composed_schedules_test.cpp found_inf_test.cpp guide_test.cpp lbfgs_test.cpp optimizer_baseline_test.cpp optimizer_test.cpp parameter_rules_test.cpp parameter_versions_test.cpp schedule_baseline_test.cpp
  schedules_test.cpp torch_optimizer_test.cpp)
