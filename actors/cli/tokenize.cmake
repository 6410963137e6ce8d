# `troupe model tokenize`, apart from the other commands since it needs no model.
troupe_library(troupe_cli_tokenize
  SOURCES tokenize.c
  LIBS troupe_lm_text troupe_cli PkgConfig::JANSSON)
