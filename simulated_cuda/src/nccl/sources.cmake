# The simulated libnccl.so.2, from simulated_cuda/src/nccl.
set(NCCL_SOURCES
  api_calls.cpp
  api_communicators.cpp
  api_other.cpp
  channel.cpp
  collectives.cpp
  communicator.cpp
  data_types.cpp
  gpu.cpp
  group.cpp
  job.cpp
  operation.cpp
  report.cpp
  segment.cpp
  split.cpp
  transfers.cpp
  waiting.cpp)
