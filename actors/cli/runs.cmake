# `troupe status`, `stop` and `clean`.
troupe_library(troupe_runs
  SOURCES runs.c
  LIBS troupe_runtime PkgConfig::JANSSON)
