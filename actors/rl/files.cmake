troupe_library(troupe_rl
  SOURCES options.c settings.c correction_name.c names.c advantage.c token_advantage.c correction.c loss.c evaluate.c stats.c
  LIBS troupe_runtime m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)
