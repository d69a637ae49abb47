# fulgur_on_simulated_gpus(target prefix [schedule…]): the target's tests with the tag [gpu] run on simulated CUDA too (docs/simulated_gpu.md),
# in each schedule, by default late and 2; there a skip for want of a GPU is a failure.
set(FULGUR_SIMULATED_SCHEDULES "" CACHE STRING "Schedules of simulated CUDA in which all tests for GPUs run (immediate, late, a number)")
set(_simulated_devices 8)

# simulated_gpu_tests(target variables… -- arguments of catch_discover_tests): each test of the program is one of ctest's, on the simulator with
# these environment variables. PROPERTIES of catch_discover_tests take one variable only, so the tests run through an emulator.
function(simulated_gpu_tests target)
  set(rest ${ARGN})
  list(FIND rest "--" end)
  list(SUBLIST rest 0 ${end} variables)
  math(EXPR begin "${end} + 1")
  list(SUBLIST rest ${begin} -1 rest)
  fulgur_simulated_gpu_command(simulated SIMULATED_CUDA_LOG=0 OMP_NUM_THREADS=1 ${variables})
  add_dependencies(${target} simulated_cuda)
  set_target_properties(${target} PROPERTIES CROSSCOMPILING_EMULATOR "${simulated}")
  catch_discover_tests(${target} DISCOVERY_MODE PRE_TEST ${rest} PROPERTIES SKIP_RETURN_CODE 4 LABELS simulated-gpu COST 30)
  set_target_properties(${target} PROPERTIES CROSSCOMPILING_EMULATOR "")
endfunction()

function(fulgur_on_simulated_gpus target prefix)
  if(NOT TARGET simulated_cuda)
    return()
  endif()
  set(schedules late 2)
  if(FULGUR_SIMULATED_SCHEDULES)
    set(schedules ${FULGUR_SIMULATED_SCHEDULES})
  elseif(ARGN)
    set(schedules ${ARGN})
  endif()
  foreach(schedule ${schedules})
    # How ranks end, after timeouts, and how many bytes they have, does not depend on the order of kernels.
    set(tests "[gpu]")
    if(NOT schedule STREQUAL "late")
      set(tests "[gpu]~[ends]~[bytes]")
    endif()
    # The name tells the sets of tests of one program apart, for CMake.
    simulated_gpu_tests(${target} SIMULATED_CUDA_SCHEDULE=${schedule} SIMULATED_CUDA_DEVICES=${_simulated_devices} FULGUR_REQUIRE_GPU=${_simulated_devices}
      -- TEST_SPEC "${tests}" EXTRA_ARGS --warn NoAssertions --name ${schedule} TEST_PREFIX "${prefix} (simulated GPU, ${schedule}): ")
  endforeach()
endfunction()

# fulgur_broken_simulated_gpus(target prefix filter rules…): negative controls. On a simulated GPU that breaks one of the rules, the tests
# that `filter` names fail: so they would see it if the code forgot the rule.
function(fulgur_broken_simulated_gpus target prefix filter)
  if(NOT TARGET simulated_cuda)
    return()
  endif()
  foreach(broken ${ARGN})
    fulgur_add_simulated_gpu_test(NAME "${prefix}: broken ${broken}: ${filter} fails" SCHEDULES late
      COMMAND ${target} "${filter}" ENVIRONMENT SIMULATED_CUDA_LOG=0 OMP_NUM_THREADS=1 SIMULATED_CUDA_BREAK=${broken} FULGUR_REQUIRE_GPU=1)
    set_tests_properties("${prefix}: broken ${broken}: ${filter} fails (simulated GPU, late)" PROPERTIES PASS_REGULAR_EXPRESSION "FAILED:")
  endforeach()
endfunction()
