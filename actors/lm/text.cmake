# Text and tokens: tokenizer.json, chat templates, where a generation stops.
troupe_library(troupe_lm_text
  SOURCES
    unicode.c split.c vocab.c bpe.c added.c
    tokenizer.c detokenizer.c tokenizer_load.c tokenizer_parts.c tokenizer_files.c
    chat.c chat_template.c stop.c
  LIBS troupe_runtime troupe_lm_io PkgConfig::JANSSON PkgConfig::UTF8PROC
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)
