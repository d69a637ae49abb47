# Tests on GPUs that are simulated on the CPU (docs/simulated_gpu.md):
#
#   fulgur_add_simulated_gpu_test(NAME my_gpu_test COMMAND my_test argument)
#
# The file that includes this one sets FULGUR_SIMULATED_GPU_SCRIPT and FULGUR_SIMULATED_CUDA_DIR to the place of the
# simulator, or FULGUR_NO_SIMULATED_GPU to the reason why there is none. FULGUR_HAS_SIMULATED_GPU tells projects whether
# they can have such tests.
if(FULGUR_NO_SIMULATED_GPU)
  set(FULGUR_HAS_SIMULATED_GPU OFF)
else()
  set(FULGUR_HAS_SIMULATED_GPU ON)
endif()

# fulgur_simulated_gpu_command(RESULT variable=value…): in RESULT, the list of words that come before a program, so that it runs on the simulator with
# these environment variables.
function(fulgur_simulated_gpu_command result)
  set(${result} ${CMAKE_COMMAND} -E env FULGUR_SIMULATED_CUDA_DIR=${FULGUR_SIMULATED_CUDA_DIR} ${ARGN} ${FULGUR_SIMULATED_GPU_SCRIPT} PARENT_SCOPE)
endfunction()

# fulgur_add_simulated_gpu_test(NAME name COMMAND target|program [argument…]
#                               [SCHEDULES immediate late 2 3] [DEVICES 1] [ENVIRONMENT variable=value…])
# A test for each schedule, "NAME (simulated GPU, SCHEDULE)", with the label simulated-gpu.
function(fulgur_add_simulated_gpu_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;DEVICES" "COMMAND;SCHEDULES;ENVIRONMENT")
  if(FULGUR_NO_SIMULATED_GPU)
    message(FATAL_ERROR "fulgur_add_simulated_gpu_test(NAME ${arg_NAME}): ${FULGUR_NO_SIMULATED_GPU} "
      "A project that does not need it checks `if(FULGUR_HAS_SIMULATED_GPU)` first.")
  endif()
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES OR NOT arg_NAME OR NOT arg_COMMAND)
    message(FATAL_ERROR "fulgur_add_simulated_gpu_test(NAME name COMMAND target|program [argument…] [SCHEDULES immediate late 2 3] [DEVICES 1] "
      "[ENVIRONMENT variable=value…]); got: ${ARGV}")
  endif()
  if(NOT DEFINED arg_SCHEDULES)
    set(arg_SCHEDULES immediate late 2 3)
  endif()
  if(NOT DEFINED arg_DEVICES)
    set(arg_DEVICES 1)
  endif()
  # A misspelt keyword would become an argument of the program.
  foreach(word ${arg_COMMAND})
    if(word MATCHES "^(SCHEDULE|DEVICE|COMMANDS|NAMES|ENVIRONMENTS|ENV|LABELS|TIMEOUT)$")
      message(FATAL_ERROR "fulgur_add_simulated_gpu_test(NAME ${arg_NAME}): '${word}' is not a keyword; the keywords are SCHEDULES, DEVICES and ENVIRONMENT.")
    endif()
  endforeach()
  foreach(schedule ${arg_SCHEDULES})
    if(NOT schedule MATCHES "^(immediate|late|[2-9]|[1-9][0-9]+)$")
      message(FATAL_ERROR "fulgur_add_simulated_gpu_test(NAME ${arg_NAME}): a schedule must be immediate, late or a number from 2 on; got '${schedule}'.")
    endif()
  endforeach()
  if(NOT arg_DEVICES MATCHES "^[1-9][0-9]*$")
    message(FATAL_ERROR "fulgur_add_simulated_gpu_test(NAME ${arg_NAME}): DEVICES must be a number from 1 on; got '${arg_DEVICES}'.")
  endif()
  list(POP_FRONT arg_COMMAND program)
  if(TARGET ${program})
    if(TARGET simulated_cuda)
      add_dependencies(${program} simulated_cuda)
    endif()
    set(program $<TARGET_FILE:${program}>)
  endif()
  foreach(schedule ${arg_SCHEDULES})
    fulgur_simulated_gpu_command(simulated SIMULATED_CUDA_DEVICES=${arg_DEVICES} SIMULATED_CUDA_SCHEDULE=${schedule} ${arg_ENVIRONMENT})
    set(name "${arg_NAME} (simulated GPU, ${schedule})")
    add_test(NAME "${name}" COMMAND ${simulated} ${program} ${arg_COMMAND})
    set_tests_properties("${name}" PROPERTIES LABELS simulated-gpu)
  endforeach()
endfunction()
