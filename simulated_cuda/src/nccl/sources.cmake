# The simulated libnccl.so.2, from simulated_cuda/src/nccl.
set(NCCL_SOURCES
  api_calls.cpp
  api_communicators.cpp
  api_other.cpp
  ranks/channel.cpp
  ranks/communicator.cpp
  ranks/data_types.cpp
  ranks/report.cpp
  ranks/segment.cpp
  ranks/split.cpp
  ranks/waiting.cpp
  work/collectives.cpp
  work/group.cpp
  work/job.cpp
  work/operation.cpp
  work/transfers.cpp)
