# The model itself: decoder, engine, trainer, scorer.
troupe_library(troupe_lm
  SOURCES
    shape.c weights.c
    decoder.c decoder_forward.c decoder_backward.c
    batch.c scorer.c
    kv.c engine.c engine_group.c engine_plan.c engine_run.c engine_draw.c
    optimizer.c trainer.c trainer_pass.c
  LIBS troupe_lm_io troupe_kernels troupe_rl troupe_scheduler troupe_runtime m
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)

# The commands on a model that need no more than it.
troupe_library(troupe_lm_cli
  SOURCES ../cli/verify.c ../cli/verify_compute.c ../cli/verify_compare.c ../cli/generate.c
  LIBS troupe_lm troupe_lm_text troupe_cli
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/../include)
