troupe_library(troupe_reward
  SOURCES dataset.c row.c reward.c text.c number.c countdown.c regex.c command.c program.c utf8.c
  LIBS troupe_runtime PkgConfig::JANSSON PkgConfig::PCRE2 m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)
