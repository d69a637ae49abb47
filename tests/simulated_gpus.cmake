# fulgur_on_simulated_gpus(target prefix): the target's tests with the tag [gpu] run on simulated CUDA too (docs/simulated_gpu.md), in each
# schedule; there a skip for want of a GPU is a failure.
set(FULGUR_SIMULATED_SCHEDULES immediate late 2 3 CACHE STRING "Schedules of simulated CUDA in which tests for GPUs run")
set(_simulated_devices 8)

function(fulgur_on_simulated_gpus target prefix)
  if(NOT TARGET simulated_cuda)
    return()
  endif()
  add_dependencies(${target} simulated_cuda)
  foreach(schedule ${FULGUR_SIMULATED_SCHEDULES})
    # The name tells the sets of tests of one program apart, for CMake.
    catch_discover_tests(${target} TEST_SPEC "[gpu]" EXTRA_ARGS --name ${schedule} TEST_PREFIX "${prefix} (simulated GPU, ${schedule}): " DISCOVERY_MODE PRE_TEST
      PROPERTIES SKIP_RETURN_CODE 4 LABELS simulated-gpu
      ENVIRONMENT "LD_PRELOAD=${FULGUR_SIMULATED_CUDA_PRELOAD};SIMULATED_CUDA_SCHEDULE=${schedule};SIMULATED_CUDA_DEVICES=${_simulated_devices};FULGUR_REQUIRE_GPU=${_simulated_devices};OMP_NUM_THREADS=1")
  endforeach()
endfunction()
