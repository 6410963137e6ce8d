troupe_library(troupe_scheduler
  SOURCES packing.c
  LIBS troupe_runtime
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include)
