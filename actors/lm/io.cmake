# What lies on disk: safetensors, config.json, checkpoints. Knows no device and no token.
troupe_library(troupe_lm_io
  SOURCES
    file.c json.c safetensors.c safetensors_header.c safetensors_write.c
    config.c config_rope.c config_write.c layout.c params.c params_source.c
    manifest.c checkpoint.c checkpoint_dir.c
  LIBS troupe_runtime PkgConfig::JANSSON PkgConfig::XXHASH m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)

# The command that shows a model directory; the command line links it.
troupe_library(troupe_model_info
  SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/../cli/model_info.c
  LIBS troupe_lm_io troupe_cli)
target_include_directories(troupe_model_info PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/..)
